//! A relay that posts messages over HTTP.

mod answer;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use ureq::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use ureq::http::{Request, Uri};
use ureq::{Agent, Body};

use self::answer::{Fate, fate};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::failure::{Verdict, Verdicts, verdict_of};
use crate::job::instant;
use crate::relay::{Message, Relay};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// What an answer's body is read for is its connection; past this a new one is cheaper.
const MOST_BODY: u64 = 64 * 1024;
const BODY_TIME: Duration = Duration::from_secs(1);
/// Idle connections that are kept: a good many workers' worth.
const IDLE: usize = 10;
/// How long a message is held back that could not be sent without the log's learning the authorization.
const UNTIL_THE_LOG_IS_QUIET: Duration = Duration::from_secs(60);
/// Where the HTTP client writes raw bytes to the log, at trace level.
const RAW_LOGS: [&str; 2] = ["ureq::util", "ureq_proto::util"];
/// Headers that are not free to set, and what sets them.
const OWN_HEADERS: [(HeaderName, &str); 11] = [
    (header::AUTHORIZATION, "set it with `authorization`"),
    (header::PROXY_AUTHORIZATION, "there is no proxy"),
    (header::CONTENT_TYPE, "set it with `content_type`"),
    (IDEMPOTENCY_KEY, "it is the message's id"),
    (header::HOST, "it comes from the address"),
    (header::CONTENT_LENGTH, "it comes from the body"),
    (header::TRANSFER_ENCODING, "it comes from the body"),
    (header::CONNECTION, "connections are the client's"),
    (header::UPGRADE, "connections are the client's"),
    (header::EXPECT, "connections are the client's"),
    (header::TE, "connections are the client's"),
];

type Authorization = Arc<dyn Fn() -> anyhow::Result<String> + Send + Sync>;

/// A [`Relay`] that posts each message to one address. Needs the feature `webhook`.
///
/// The request is a POST with the message's body, `Content-Type: application/json`, `Idempotency-Key: <the message's id>`
/// and `User-Agent: birkez/<version>`. What comes of it:
///
/// | answer | the message |
/// | --- | --- |
/// | 2xx | is done; the status is its output |
/// | 408, 425, 429, 5xx | is tried again |
/// | none: no connection, none in time, one that breaks, TLS that fails | is tried again; it may have arrived |
/// | 401, 403 | is parked as `auth` |
/// | 3xx | is dead: a redirect is not followed, since the authorization must not go elsewhere |
/// | other 4xx | is dead |
///
/// Of a kind that runs [at most once](crate::Job::AT_MOST_ONCE) only what was surely never sent is tried again (no
/// connection, no authorization to send); another answer that would be tried again, or none, leaves it parked as
/// `unknown_outcome`.
///
/// A `Retry-After` (seconds, or a date in any of the three forms of HTTP) is a floor for the next attempt, which then costs
/// nothing. It counts for at most a day: real ones are shorter, and a slip must not put a message to sleep. One that asks
/// for no wait, or that cannot be read, is not heeded.
///
/// The answer's body is not used, nor is any of the answer but the status in an error: a receiver may echo what it got.
/// Errors name the host without the path, in which addresses carry secrets.
///
/// Connections are kept and used again. The environment's proxy variables are not heeded: a message goes to the address,
/// whatever shell the program was started from. Certificates are checked against Mozilla's roots, which are built in, not
/// against the machine's.
///
/// ```no_run
/// use birkez::{Job, Runner, Webhook};
/// # use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Receipt { sale: u32 }
///
/// impl Job for Receipt {
///     const KIND: &'static str = "receipt";
///     type Output = u16; // the status of the answer
///     fn key(&self) -> String { self.sale.to_string() }
/// }
///
/// # fn main() -> anyhow::Result<()> {
/// # let folder = birkez::testing::TempStore::new()?;
/// # let store = folder.open()?;
/// let post = Webhook::new("https://books.example/receipts")?
///     .authorization(|| Ok(format!("Bearer {}", std::fs::read_to_string("token")?.trim())));
/// let runner = Runner::builder(&store).relay::<Receipt>(post).start()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Webhook {
    address: Uri,
    /// Host and port, for messages.
    host: String,
    headers: HeaderMap,
    authorization: Option<Authorization>,
    connect_timeout: Duration,
    timeout: Duration,
    agent: Agent,
}

impl Webhook {
    /// Posts to `address`, an `http` or `https` URL.
    ///
    /// # Errors
    ///
    /// [`Error::WebhookInvalid`] if it is none, or holds a user name or a password: those belong in
    /// [`authorization`](Webhook::authorization).
    pub fn new(address: &str) -> Result<Webhook> {
        let refused = |why: &'static str| Error::WebhookInvalid { setting: "address", source: why.into() };
        let address: Uri = address.parse().map_err(|_| refused("it is no URL"))?;
        if !matches!(address.scheme_str(), Some("http" | "https")) {
            return Err(refused("it does not begin with http:// or https://"));
        }
        let host =
            address.authority().filter(|host| !host.host().is_empty()).ok_or_else(|| refused("it has no host"))?;
        if host.as_str().contains('@') {
            return Err(refused("it holds a user name or a password; set them with `authorization`"));
        }
        if host.port_u16().is_none() && host.as_str() != host.host() {
            return Err(refused("its port is no number that a port can have"));
        }
        let (host, connect_timeout, timeout) = (host.to_string(), Duration::from_secs(5), Duration::from_secs(30));
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        let agent = agent(connect_timeout, timeout);
        Ok(Webhook { address, host, headers, authorization: None, connect_timeout, timeout, agent })
    }

    /// How long connecting may take, TLS included, and finding the host's address again as long. At least 1 ms, at most a
    /// day. Defaults to 5 s.
    pub fn connect_timeout(self, time: Duration) -> Self {
        let connect_timeout = sane(time);
        Webhook { agent: agent(connect_timeout, self.timeout), connect_timeout, ..self }
    }

    /// How long all of one attempt may take, from the search for the host to the answer's end. Keep it below the kind's own
    /// limit ([`Job::timeout`](crate::Job::timeout)). At least 1 ms, at most a day. Defaults to 30 s.
    pub fn timeout(self, time: Duration) -> Self {
        let timeout = sane(time);
        Webhook { agent: agent(self.connect_timeout, timeout), timeout, ..self }
    }

    /// Adds a header to every request; one of the same name is replaced. Defaults to none.
    ///
    /// A secret belongs in [`authorization`](Webhook::authorization), which takes more care.
    ///
    /// # Errors
    ///
    /// [`Error::WebhookInvalid`] if name or value cannot be sent (line ends, control characters), or the header is one
    /// that is set otherwise.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self> {
        let refused = |why: &'static str| Error::WebhookInvalid { setting: "header", source: why.into() };
        let name = HeaderName::try_from(name).map_err(|_| refused("its name is no header's name"))?;
        if let Some((_, why)) = OWN_HEADERS.iter().find(|(own, _)| *own == name) {
            return Err(refused(why));
        }
        self.headers.insert(name, sensitive(value).ok_or_else(|| refused("its value holds what no header can"))?);
        Ok(self)
    }

    /// Sets the `Content-Type`. Defaults to `application/json`.
    ///
    /// # Errors
    ///
    /// [`Error::WebhookInvalid`] if it cannot be sent.
    pub fn content_type(mut self, value: &str) -> Result<Self> {
        let why = "it holds what no header can";
        let refused = Error::WebhookInvalid { setting: "content type", source: why.into() };
        self.headers.insert(header::CONTENT_TYPE, HeaderValue::from_str(value).map_err(|_| refused)?);
        Ok(self)
    }

    /// Where the `Authorization` header's value comes from: `f` is called at each attempt, and what it answers is dropped
    /// after it. It is never stored, logged, shown or part of an error. Defaults to none.
    ///
    /// An error of `f` is the attempt's: transient, unless it carries a verdict ([`Verdicts`]); its text is stored, so it
    /// should not hold the secret. A value that cannot be sent, such as one with a line end or letters beyond ASCII, parks
    /// the message as `auth`.
    ///
    /// The HTTP client writes the bytes it sends to the log if the log takes trace events of `ureq` and `ureq_proto`. While
    /// it does, messages with an authorization are held back, uncharged, and say so.
    pub fn authorization(mut self, f: impl Fn() -> anyhow::Result<String> + Send + Sync + 'static) -> Self {
        self.authorization = Some(Arc::new(f));
        self
    }

    fn request<'a>(&self, message: &Message<'a>) -> anyhow::Result<Request<&'a str>> {
        let id = id_value(message.id())
            .ok_or_else(|| anyhow!("POST to {}: the message's id cannot be sent as a header", self.host))
            .permanent()?;
        let mut request = Request::post(self.address.clone()).body(message.body).permanent()?;
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(IDEMPOTENCY_KEY, id);
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(header::AUTHORIZATION, self.ask(authorization)?);
        }
        Ok(request)
    }

    fn ask(&self, authorization: &Authorization) -> anyhow::Result<HeaderValue> {
        if RAW_LOGS.iter().any(|target| log::log_enabled!(target: target, log::Level::Trace)) {
            let why =
                "held back: the log takes trace events of `ureq` and `ureq_proto`, which would hold the authorization";
            tracing::warn!(host = self.host, "a message is {why}");
            let held: anyhow::Result<HeaderValue> = Err(anyhow!("POST to {}: {why}", self.host));
            return held.transient().retry_after(UNTIL_THE_LOG_IS_QUIET);
        }
        let value = authorization().or_else(unsent);
        let value = value.with_context(|| format!("POST to {}: asking for the authorization", self.host))?;
        let why = "the authorization holds what no header can (a line end, perhaps)";
        sensitive(&value)
            .filter(|_| value.is_ascii())
            .ok_or_else(|| anyhow!("POST to {}: {why}", self.host))
            .park("auth")
    }

    /// What the answer comes to.
    fn settle(&self, status: u16, fate: Fate) -> anyhow::Result<u16> {
        let answered: anyhow::Result<u16> = Err(anyhow!("POST to {}: answered {status}", self.host));
        match fate {
            Fate::Delivered => Ok(status),
            Fate::Again(None) => answered,
            Fate::Again(Some(floor)) => answered.retry_after(floor),
            Fate::Unauthorized => answered.park("auth"),
            Fate::Redirected => {
                answered.context("a redirect is not followed; the address should be its target").permanent()
            }
            Fate::Refused => answered.permanent(),
        }
    }
}

impl Relay for Webhook {
    type Receipt = u16;

    fn publish(&self, message: &Message<'_>, cx: &Context) -> anyhow::Result<u16> {
        let request = self.request(message)?;
        if cx.is_cancelled() {
            return Err(anyhow!("POST to {}: stopped before it was sent", self.host)).transient();
        }
        match self.agent.run(request) {
            Ok(answer) => {
                let retry_after = answer.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
                let status = answer.status().as_u16();
                let fate = fate(status, retry_after, instant(cx.store().inner.clock.wall()));
                drain(answer.into_body());
                self.settle(status, fate)
            }
            Err(error) => {
                let failed = Err(anyhow!("POST to {}: {}", self.host, safe_words(&error)));
                if is_before_the_request(&error) { failed.transient() } else { failed }
            }
        }
    }
}

impl fmt::Debug for Webhook {
    /// Without the path and the headers' values, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook")
            .field("host", &self.host)
            .field("headers", &self.headers.keys().map(HeaderName::as_str).collect::<Vec<_>>())
            .field("authorization", &self.authorization.as_ref().map(|_| "asked at each attempt"))
            .field("connect_timeout", &self.connect_timeout)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

fn agent(connect_timeout: Duration, timeout: Duration) -> Agent {
    Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .proxy(None)
        .user_agent(concat!("birkez/", env!("CARGO_PKG_VERSION")))
        .max_idle_connections(IDLE)
        .max_idle_connections_per_host(IDLE)
        .timeout_resolve(Some(connect_timeout))
        .timeout_connect(Some(connect_timeout))
        .timeout_recv_body(Some(BODY_TIME))
        .timeout_global(Some(timeout))
        .build()
        .into()
}

/// The client adds it to an instant, which has an end.
fn sane(time: Duration) -> Duration {
    time.clamp(Duration::from_millis(1), Duration::from_secs(86_400))
}

fn sensitive(value: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// The id as a header's value, in UTF-8. Blanks around it would be lost on the way, and two ids become one.
fn id_value(id: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(id).ok().filter(|_| !id.is_empty() && id == id.trim_matches([' ', '\t']))
}

/// Reads a body to its end, so that its connection can be used again; a long or slow one costs it.
fn drain(mut body: Body) {
    let _ = io::copy(&mut io::Read::take(body.as_reader(), MOST_BODY), &mut io::sink());
}

/// What is wrong, in words that hold nothing of the request or the answer.
/// Whether it came to no connection, so that the receiver has seen nothing.
fn is_before_the_request(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
        ureq::Error::Io(error) => error.kind() == io::ErrorKind::ConnectionRefused,
        ureq::Error::Timeout(which) => matches!(which, ureq::Timeout::Resolve | ureq::Timeout::Connect),
        _ => false,
    }
}

/// Nothing has been sent, unless the callback itself says what is to come of it.
fn unsent(error: anyhow::Error) -> anyhow::Result<String> {
    match verdict_of(&error) {
        Verdict::Unsaid => Err(error).transient(),
        _ => Err(error),
    }
}

fn safe_words(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::Timeout(which) => format!("out of time ({which})"),
        ureq::Error::HostNotFound => "the host is not found".into(),
        ureq::Error::Rustls(error) => error.to_string(),
        ureq::Error::Tls(what) => (*what).into(),
        ureq::Error::Protocol(_) | ureq::Error::LargeResponseHeader(..) => "no valid HTTP was spoken".into(),
        _ => "it could not be sent".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "s3cret";

    #[track_caller]
    fn refused(result: Result<Webhook>) {
        let error = anyhow::Error::from(result.expect_err("it was taken"));
        let text = format!("{error:#} {error:?}");
        assert!(text.starts_with("a webhook's ") && !text.contains(SECRET), "{text}");
    }

    #[test]
    fn a_bad_address_is_refused_and_not_repeated() {
        for address in [
            "",
            "/",
            "s3cret",
            "books.example/s3cret",
            "ftp://books.example/s3cret",
            "file:///s3cret",
            "http://",
            "http:///s3cret",
            "https://:80/s3cret",
            "https://user:s3cret@books.example/",
            "https://s3cret@books.example",
            "http://a b/s3cret",
            "http://books.example/s3cret\r\nX: y",
            "http://books.example:port/s3cret",
            "http://bücher.example/s3cret",
        ] {
            println!("{address:?}");
            refused(Webhook::new(address));
        }
        let hook = Webhook::new("HTTP://[::1]:8080/a?b=s3cret#c").unwrap();
        assert_eq!(hook.host, "[::1]:8080");
    }

    #[test]
    fn a_bad_header_is_refused_and_not_repeated() {
        let hook = || Webhook::new("http://books.example").unwrap();
        for (name, value) in [
            ("", "v"),
            ("a b", "v"),
            ("a\r\nb", "v"),
            ("s3cret:", "v"),
            ("ü", "v"),
            ("A", "s3cret\r\nB: c"),
            ("A", "s3cret\n"),
            ("A", "s3cret\0"),
            ("Authorization", "s3cret"),
            ("IDEMPOTENCY-KEY", "s3cret"),
            ("host", "s3cret"),
            ("Content-Length", "1"),
            ("transfer-encoding", "chunked"),
            ("content-type", "text/plain"),
            ("Expect", "100-continue"),
        ] {
            println!("{name:?} {value:?}");
            refused(hook().header(name, value));
        }
        refused(hook().content_type("text/plain\r\nX: s3cret"));
    }

    #[test]
    fn what_is_shown_of_it_holds_no_secret() {
        let hook = Webhook::new("https://books.example/s3cret?s3cret").unwrap().header("X-Api-Key", SECRET).unwrap();
        let text = format!("{:?}", hook.authorization(|| Ok(SECRET.into())));
        assert!(text.contains("books.example") && text.contains("x-api-key") && !text.contains(SECRET), "{text}");
    }

    #[test]
    fn no_time_limit_breaks_it() {
        for time in [Duration::ZERO, Duration::MAX] {
            let hook = Webhook::new("http://books.example").unwrap().connect_timeout(time).timeout(time);
            assert!(!hook.timeout.is_zero() && hook.timeout <= Duration::from_secs(86_400));
        }
    }

    #[test]
    fn an_id_is_sent_as_it_is_or_not_at_all() {
        for id in ["sale/17 a", "größe/42"] {
            assert_eq!(id_value(id).unwrap().as_bytes(), id.as_bytes());
        }
        for id in ["", " a", "a ", "a\t", "a\nb", "a\r\nX: y", "a\0"] {
            assert_eq!(id_value(id), None, "{id:?}");
        }
    }
}
