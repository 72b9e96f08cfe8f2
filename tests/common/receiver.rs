//! A small HTTP receiver: it logs what is delivered, and answers as it is told. It depends on nothing beside it, so that an
//! example can use it too.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A request as it arrived, whole.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// When its last byte was read.
    pub at: Instant,
    /// The connection it came on, from 0.
    pub connection: usize,
    /// How many requests with the same id came before it.
    pub repeat: usize,
    /// Its first line.
    pub request: String,
    /// Its headers, in order.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Delivery {
    /// The value of a header, whatever the case of its name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Its `Idempotency-Key`; empty if it has none.
    pub fn id(&self) -> &str {
        self.header("idempotency-key").unwrap_or_default()
    }
}

/// How a delivery is answered.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    status: u16,
    headers: String,
    body: String,
    delay: Duration,
    /// The connection is closed after this many bytes.
    cut: Option<usize>,
}

impl Answer {
    pub fn status(status: u16) -> Answer {
        Answer { status, ..Answer::default() }
    }

    /// None: the connection is closed.
    pub fn silence() -> Answer {
        Answer { cut: Some(0), ..Answer::default() }
    }

    pub fn header(mut self, name: &str, value: &str) -> Answer {
        self.headers += &format!("{name}: {value}\r\n");
        self
    }

    pub fn body(self, body: impl Into<String>) -> Answer {
        Answer { body: body.into(), ..self }
    }

    /// Not sooner than this after the request.
    pub fn after(self, delay: Duration) -> Answer {
        Answer { delay, ..self }
    }

    /// Only the first `bytes` of it, then the connection is closed.
    pub fn cut_at(self, bytes: usize) -> Answer {
        Answer { cut: Some(bytes), ..self }
    }

    /// All but the last `bytes` of it, then the connection is closed.
    pub fn without_last(self, bytes: usize) -> Answer {
        let whole = self.bytes().len();
        self.cut_at(whole - bytes)
    }

    fn bytes(&self) -> Vec<u8> {
        let Answer { status, headers, body, .. } = self;
        format!("HTTP/1.1 {status} Told\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len()).into_bytes()
    }
}

type Script = dyn Fn(&Delivery) -> Answer + Send + Sync;

#[derive(Default)]
struct Shared {
    log: Mutex<Vec<Delivery>>,
    open: Mutex<Vec<TcpStream>>,
    ended: AtomicBool,
}

/// Listens on a port of its own until it is dropped.
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Receiver {
    /// Answers each delivery as `script` says, which is asked when the delivery is in the log.
    pub fn start(script: impl Fn(&Delivery) -> Answer + Send + Sync + 'static) -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let (mine, script): (_, Arc<Script>) = (Arc::clone(&shared), Arc::new(script));
        thread::spawn(move || {
            for (connection, stream) in listener.incoming().map_while(Result::ok).enumerate() {
                if mine.ended.load(Ordering::SeqCst) {
                    break;
                }
                lock(&mine.open).extend(stream.try_clone());
                let (shared, script) = (Arc::clone(&mine), Arc::clone(&script));
                // A client that breaks off is a client's matter.
                thread::spawn(move || drop(serve(&stream, connection, &shared, &*script)));
            }
        });
        Receiver { address, shared }
    }

    /// Answers with 200, whatever comes.
    pub fn accepting() -> Receiver {
        Receiver::start(|_| Answer::status(200))
    }

    /// The address of `path`, which begins with a slash.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Everything that arrived so far, repeats and all, in order.
    pub fn deliveries(&self) -> Vec<Delivery> {
        lock(&self.shared.log).clone()
    }

    /// What a receiver has that tells repeats by their id: the first body of each.
    pub fn deduped(&self) -> BTreeMap<String, String> {
        let mut first = BTreeMap::new();
        for delivery in self.deliveries() {
            first.entry(delivery.id().to_owned()).or_insert(delivery.body);
        }
        first
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // Wakes the listener.
        let _ = TcpStream::connect(self.address);
        for stream in lock(&self.shared.open).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Answers the requests of one connection until either side closes it.
fn serve(stream: &TcpStream, connection: usize, shared: &Shared, script: &Script) -> io::Result<()> {
    let mut input = BufReader::new(stream);
    while let Some(mut delivery) = read(&mut input, connection)? {
        {
            let mut log = lock(&shared.log);
            delivery.repeat = log.iter().filter(|before| before.id() == delivery.id()).count();
            log.push(delivery.clone());
        }
        let answer = script(&delivery);
        thread::sleep(answer.delay);
        let bytes = answer.bytes();
        let mut output = stream;
        output.write_all(&bytes[..answer.cut.unwrap_or(bytes.len())])?;
        if answer.cut.is_some() {
            return stream.shutdown(Shutdown::Both);
        }
    }
    Ok(())
}

/// One request, whole; `None` when the client has closed the connection.
fn read(input: &mut impl BufRead, connection: usize) -> io::Result<Option<Delivery>> {
    let mut head = Vec::new();
    while head.last().is_none_or(|line: &String| !line.is_empty()) {
        let mut line = String::new();
        input.read_line(&mut line)?;
        // A client that dies in the middle has delivered nothing.
        let Some(line) = line.strip_suffix("\r\n") else { return Ok(None) };
        head.push(line.to_owned());
    }
    let split = |line: &String| line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
    let headers = head[1..].iter().filter_map(split).collect();
    let request = head.swap_remove(0);
    let mut delivery = Delivery { at: Instant::now(), connection, repeat: 0, request, headers, body: String::new() };
    let length = delivery.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    input.take(length).read_to_string(&mut delivery.body)?;
    delivery.at = Instant::now();
    Ok((delivery.body.len() as u64 == length).then_some(delivery))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
