//! From HTTP to a sale. What is no HTTP, or has more than 8 KiB of headers, oxhttp refuses by itself, with 400 and plain text.

use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use oxhttp::Server;
use oxhttp::model::header::CONNECTION;
use oxhttp::model::{Body, HeaderValue, Method, Request, Response};

use crate::reply::{Refused, reply};
use crate::sales::{Form, Receipt, Sales};

/// A form is small.
const BODY_LIMIT: u64 = 16 * 1024;
/// Whoever says nothing for so long is not waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// A thread each.
const CONNECTIONS: usize = 64;

/// The panel's sales, as long as it takes any.
pub type Open = Arc<Mutex<Option<Arc<Sales>>>>;

/// Serves in threads of its own; answers where.
pub fn listen(address: SocketAddr, open: &Open) -> io::Result<SocketAddr> {
    loop {
        // oxhttp does not tell which port it was given for 0, so a free one is asked for first. Somebody may be quicker.
        let free = if address.port() == 0 { TcpListener::bind(address)?.local_addr()? } else { address };
        let open = Arc::clone(open);
        let server = Server::new(move |request| answer(request, &open));
        let server = server.with_global_timeout(PATIENCE).with_max_concurrent_connections(CONNECTIONS);
        match server.bind(free).spawn() {
            Err(error) if error.kind() == ErrorKind::AddrInUse && address.port() == 0 => {}
            spawned => return spawned.map(|_| free),
        }
    }
}

fn answer(request: &mut Request<Body>, open: &Open) -> Response<Body> {
    // One request a connection: oxhttp answers an idle one with 500 when its patience is over, and a page that sends its
    // next request at that moment would take this for the answer.
    request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    let sales = open.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let Some(sales) = sales else {
        return reply(Err(refused(503, "STOPPING", "the panel is stopping: send it again, under the same key")));
    };
    let mut response = reply(take(request, &sales));
    // Lives as long as the response, that is, until it is written; `close` waits for it.
    response.extensions_mut().insert(sales);
    response
}

/// Takes no more sales, and waits for those that are at work and their answers. What takes longer than that is left in its
/// middle, as a kill would leave it.
pub fn close(open: &Open) {
    let Some(sales) = open.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    let start = Instant::now();
    while Arc::strong_count(&sales) > 1 && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn take(request: &mut Request<Body>, sales: &Sales) -> Result<Receipt, Refused> {
    match (request.uri().path(), request.method()) {
        ("/sales", &Method::POST) => {}
        ("/sales", method) => return Err(refused(405, "METHOD", format!("/sales takes POST, not {method}"))),
        (path, _) => return Err(refused(404, "NOT_FOUND", format!("there is no {path}"))),
    }
    let key = key(request)?;
    let form = form(request)?;
    Ok(sales.take(&key, form)?)
}

/// The key as it was sent, byte by byte. What is wrong with its length the library says.
fn key(request: &Request<Body>) -> Result<String, Refused> {
    let mut keys = request.headers().get_all("idempotency-key").iter();
    let Some(key) = keys.next() else {
        let message =
            "POST /sales needs an Idempotency-Key: make one when the form opens, and keep it until there is an answer";
        return Err(refused(400, "KEY_REQUIRED", message));
    };
    match key.to_str() {
        Ok(key) if keys.next().is_none() => Ok(key.to_owned()),
        _ => Err(refused(400, "KEY_INVALID", "an Idempotency-Key is one header of visible ASCII characters")),
    }
}

fn form(request: &mut Request<Body>) -> Result<Form, Refused> {
    let mut body = Vec::new();
    let read = request.body_mut().take(BODY_LIMIT + 1).read_to_end(&mut body);
    read.map_err(|error| refused(400, "BODY_BROKEN", format!("the body did not come whole: {error}")))?;
    if body.len() as u64 > BODY_LIMIT {
        return Err(refused(413, "BODY_TOO_LARGE", format!("a form has at most {BODY_LIMIT} bytes")));
    }
    let form: Form = serde_json::from_slice(&body)
        .map_err(|error| refused(400, "BODY_INVALID", format!("the body is not {{\"card\", \"minor\"}}: {error}")))?;
    match form.minor {
        1.. => Ok(form),
        minor => Err(refused(400, "BODY_INVALID", format!("minor is a positive number, not {minor}"))),
    }
}

fn refused(status: u16, code: &'static str, message: impl Into<String>) -> Refused {
    Refused::Request { status, code, message: message.into() }
}
