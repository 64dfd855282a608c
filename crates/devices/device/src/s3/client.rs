//! Requests to an object store over HTTP, one at a time on whatever thread asks.
//!
//! Nothing is sent twice here, but for what the store has refused because the keys had been exchanged: who sends a creation again
//! after a lost answer finds an object of that name, and cannot know from the store whose it is. So a creation has an end that is not
//! known, and the one who asked reads it back.

use std::io::{self, Read};
use std::time::Duration;

use forebay_block::words_of;
use forebay_objects::{Answer, PAGE_NAMES_MAX, Request, StoreError};
use rusty_s3::actions::ListObjectsV2;
use rusty_s3::{Bucket, Credentials as Keys, S3Action, UrlStyle};
use ureq::http::{self, Method, Response, StatusCode};
use ureq::{Agent, AsSendBody, Body};
use url::Url;

use crate::s3::credentials::{Credentials, Environment};
use crate::s3::tls::tls;
use crate::s3::uri::{S3Spec, read_endpoint};
use crate::s3::workers::Store;
use crate::s3::xml::element;

/// The region of stores that have none.
const REGION: &str = "us-east-1";
/// A request is good for so long: what clocks may differ by.
const GOOD_FOR: Duration = Duration::from_secs(900);
/// Most time for making a connection.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// A request is given up after so many times the limit for silence, even if the store goes on and on.
const STUCK_LIMITS: u32 = 5;
/// Most bytes of a refusal that are read, and of its sentence that are told.
const REFUSAL_BYTES_MAX: u64 = 16 << 10;
const SENTENCE_CHARS_MAX: usize = 200;
/// Most bytes of a page of a listing, which has at most a thousand names.
const PAGE_BYTES_MAX: u64 = 8 << 20;

/// See the module's documentation.
pub(crate) struct Client {
    agent: Agent,
    bucket: Bucket,
    /// What the names of the volume's objects begin with, with a slash at its end.
    prefix: String,
    credentials: Credentials,
}

impl Store for Client {
    fn carry_out(&self, request: &Request) -> Result<Answer, StoreError> {
        match request {
            Request::Create { name, bytes } => self.create(name, bytes),
            Request::Get { name, from, len } => self.get(name, *from, *len),
            Request::List { prefix, after } => self.list(prefix, after),
            Request::Delete { name } => self.delete(name),
        }
    }

    fn shut_down(&self) {
        self.agent.clone().shutdown();
    }
}

impl Client {
    /// Makes no connection yet. `connections` are kept open between requests.
    ///
    /// # Errors
    /// There are no credentials, or the environment names no store: in words for a person.
    pub(crate) fn new(spec: &S3Spec, environment: &Environment, connections: usize) -> Result<Self, String> {
        let region = spec.region.clone();
        let region = region
            .or_else(|| environment.get("AWS_REGION"))
            .or_else(|| environment.get("AWS_DEFAULT_REGION"));
        let named = environment.get("AWS_ENDPOINT_URL_S3").or_else(|| environment.get("AWS_ENDPOINT_URL"));
        let endpoint = match (&spec.endpoint, named) {
            (Some(endpoint), _) => Some(endpoint.clone()),
            (None, Some(text)) => {
                Some(read_endpoint(&text).map_err(|e| format!("in AWS_ENDPOINT_URL, {e}"))?)
            }
            (None, None) => None,
        };
        let bucket = bucket(spec, endpoint, region)?;
        let is_encrypted = bucket.base_url().scheme() == "https";
        let credentials = Credentials::find(environment)?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("forebay/", env!("CARGO_PKG_VERSION")))
            .max_idle_connections(connections)
            .max_idle_connections_per_host(connections)
            .timeout_connect(Some(CONNECT_MAX.min(spec.timeout)))
            .timeout_per_read(Some(spec.timeout))
            .timeout_per_write(Some(spec.timeout))
            .timeout_global(Some(spec.timeout * STUCK_LIMITS));
        let config = if is_encrypted { config.tls_config(tls()?) } else { config };
        Ok(Self { agent: config.build().into(), bucket, prefix: format!("{}/", spec.prefix), credentials })
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<Answer, StoreError> {
        let key = self.key(name);
        let sign = |keys: &Keys| {
            let mut action = self.bucket.put_object(Some(keys), &key);
            action.headers_mut().insert("if-none-match", "*");
            action.sign(GOOD_FOR)
        };
        let mut answer = self.run(&Method::PUT, sign, Some(("if-none-match", "*")), || bytes)?;
        match answer.status() {
            status if status.is_success() => Ok(Answer::Created),
            // Who loses a race for the name may be told either.
            StatusCode::PRECONDITION_FAILED | StatusCode::CONFLICT => Err(StoreError::Exists),
            _ => Err(refusal(&mut answer)),
        }
    }

    fn get(&self, name: &str, from: u64, len: u64) -> Result<Answer, StoreError> {
        let key = self.key(name);
        let range = format!("bytes={from}-{}", from.saturating_add(len.max(1)) - 1);
        let sign = |keys: &Keys| self.bucket.get_object(Some(keys), &key).sign(GOOD_FOR);
        let mut answer = self.run(&Method::GET, sign, Some(("range", &range)), || ())?;
        match answer.status() {
            StatusCode::PARTIAL_CONTENT => {
                let size = whole_size(&answer).ok_or_else(|| {
                    StoreError::Refused("a part of an object comes without its whole size".to_owned())
                })?;
                let part = len.min(size.saturating_sub(from));
                Ok(Answer::Object { bytes: read_exactly(&mut answer, part)?, size })
            }
            // The store does not know ranges, or the object is not longer.
            StatusCode::OK if from == 0 => {
                let size = answer.body().content_length();
                let size = size.filter(|size| *size <= len).ok_or_else(|| {
                    StoreError::Refused("a whole object comes where a part was asked for".to_owned())
                })?;
                Ok(Answer::Object { bytes: read_exactly(&mut answer, size)?, size })
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                let size = whole_size(&answer).unwrap_or(0);
                drain(&mut answer);
                Ok(Answer::Object { bytes: Vec::new(), size })
            }
            _ => Err(refusal(&mut answer)),
        }
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Answer, StoreError> {
        let (prefix, after) =
            (self.key(prefix), Some(after).filter(|after| !after.is_empty()).map(|after| self.key(after)));
        let sign = |keys: &Keys| {
            let mut action = self.bucket.list_objects_v2(Some(keys));
            action.with_prefix(&*prefix);
            action.with_max_keys(PAGE_NAMES_MAX);
            if let Some(after) = &after {
                action.with_start_after(&**after);
            }
            action.sign(GOOD_FOR)
        };
        let mut answer = self.run(&Method::GET, sign, None, || ())?;
        if !answer.status().is_success() {
            return Err(refusal(&mut answer));
        }
        let text = answer.body_mut().with_config().limit(PAGE_BYTES_MAX).read_to_string();
        let text = text.map_err(|e| StoreError::Unknown(words(&e)))?;
        let strange = || StoreError::Refused("a listing cannot be understood".to_owned());
        let page = ListObjectsV2::parse_response(&text).map_err(|_| strange())?;
        let names =
            page.contents.iter().map(|object| object.key.strip_prefix(&self.prefix).map(str::to_owned));
        let names = names.collect::<Option<Vec<_>>>().ok_or_else(strange)?;
        Ok(Answer::Page { names, more: page.next_continuation_token.is_some() })
    }

    fn delete(&self, name: &str) -> Result<Answer, StoreError> {
        let key = self.key(name);
        let sign = |keys: &Keys| self.bucket.delete_object(Some(keys), &key).sign(GOOD_FOR);
        let mut answer = self.run(&Method::DELETE, sign, None, || ())?;
        if answer.status().is_success() {
            return Ok(Answer::Deleted);
        }
        match refusal(&mut answer) {
            StoreError::Missing => Ok(Answer::Deleted),
            error => Err(error),
        }
    }

    /// Sends a request, and again if the keys that it was signed with have been exchanged for others.
    fn run<B: AsSendBody>(
        &self,
        method: &Method,
        sign: impl Fn(&Keys) -> Url,
        header: Option<(&str, &str)>,
        body: impl Fn() -> B,
    ) -> Result<Response<Body>, StoreError> {
        loop {
            let keys = self.credentials.keys();
            let mut request = http::Request::builder().method(method).uri(sign(&keys).as_str());
            if let Some((name, value)) = header {
                request = request.header(name, value);
            }
            let request = request
                .body(body())
                .map_err(|_| StoreError::Refused("its address cannot be used".to_owned()))?;
            let answer = self.agent.run(request).map_err(|e| match e {
                // Nothing was sent.
                ureq::Error::HostNotFound
                | ureq::Error::ConnectionFailed
                | ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
                    StoreError::Busy(words(&e))
                }
                ureq::Error::Io(io) if io.kind() == io::ErrorKind::ConnectionRefused => {
                    StoreError::Busy(words_of(&io))
                }
                _ => StoreError::Unknown(words(&e)),
            })?;
            let is_refused = matches!(answer.status(), StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED);
            if !is_refused || !self.credentials.have_changed(&keys) {
                return Ok(answer);
            }
        }
    }
}

/// Where a volume's bucket is.
fn bucket(spec: &S3Spec, endpoint: Option<Url>, region: Option<String>) -> Result<Bucket, String> {
    let (endpoint, style, region) = match (endpoint, region) {
        (Some(endpoint), region) => (endpoint, UrlStyle::Path, region.unwrap_or_else(|| REGION.to_owned())),
        (None, Some(region)) => {
            let endpoint = read_endpoint(&format!("https://s3.{region}.amazonaws.com"))?;
            // A certificate of Amazon's names no host with a further point.
            let style = if spec.bucket.contains('.') { UrlStyle::Path } else { UrlStyle::VirtualHost };
            (endpoint, style, region)
        }
        (None, None) => {
            return Err("neither the store nor its region is known: give it endpoint=URL, or region=NAME for Amazon's, or \
                        set AWS_ENDPOINT_URL or AWS_REGION"
                .to_owned());
        }
    };
    Bucket::new(endpoint, style, spec.bucket.clone(), region).map_err(|e| format!("its address is none: {e}"))
}

/// The size of the whole object, of which a part comes, or none: `bytes 0-4095/8192`, `bytes */8192`.
fn whole_size(answer: &Response<Body>) -> Option<u64> {
    let range = answer.headers().get("content-range")?.to_str().ok()?;
    range.rsplit_once('/')?.1.parse().ok()
}

/// So many bytes, which are all that comes.
fn read_exactly(answer: &mut Response<Body>, len: u64) -> Result<Vec<u8>, StoreError> {
    let mut bytes = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
    // To its end, so that the connection can be used again.
    let read = answer.body_mut().as_reader().take(len + 1).read_to_end(&mut bytes);
    read.map_err(|e| StoreError::Unknown(words(&e.into())))?;
    if bytes.len() as u64 != len {
        return Err(StoreError::Unknown("its answer has another length than it says".to_owned()));
    }
    Ok(bytes)
}

fn drain(answer: &mut Response<Body>) -> String {
    // What cannot be read is told by its number alone.
    answer.body_mut().with_config().limit(REFUSAL_BYTES_MAX).read_to_string().unwrap_or_default()
}

/// What an answer says that is no success.
fn refusal(answer: &mut Response<Body>) -> StoreError {
    let status = answer.status();
    let text = drain(answer);
    let (code, message) =
        (element(&text, "Code", SENTENCE_CHARS_MAX), element(&text, "Message", SENTENCE_CHARS_MAX));
    let reason = if code.is_empty() { status.canonical_reason().unwrap_or_default() } else { &code };
    let colon = if message.is_empty() { "" } else { ": " };
    let told = format!("{} {reason}{colon}{message}", status.as_u16());
    match (status, code.as_str()) {
        (_, "QuotaExceeded" | "XMinioStorageFull") | (StatusCode::INSUFFICIENT_STORAGE, _) => {
            StoreError::Full(told)
        }
        (_, "NoSuchBucket") => StoreError::NoBucket(told),
        (StatusCode::NOT_FOUND, "NoSuchKey") => StoreError::Missing,
        // Something between, or another service: it says nothing of the object.
        (StatusCode::NOT_FOUND, _) => StoreError::Unknown(told),
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => StoreError::Denied(told),
        (StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS, _) => StoreError::Busy(told),
        (StatusCode::REQUEST_TIMEOUT, _) | (_, "RequestTimeout") => StoreError::Unknown(told),
        _ if status.is_server_error() => StoreError::Unknown(told),
        _ => StoreError::Refused(told),
    }
}

/// Why there is no answer, in words for a person; without the address, which is signed.
fn words(e: &ureq::Error) -> String {
    match e {
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
            "it cannot be reached in time".to_owned()
        }
        ureq::Error::Timeout(_) => "nothing comes in time".to_owned(),
        ureq::Error::Io(e) => words_of(e),
        ureq::Error::HostNotFound => "its name is not known".to_owned(),
        ureq::Error::ConnectionFailed => "it cannot be connected to".to_owned(),
        ureq::Error::Rustls(e) => format!("it is not trusted: {e}"),
        ureq::Error::Tls(why) => format!("it is not trusted: {why}"),
        ureq::Error::Protocol(_) => "it does not speak HTTP as it should".to_owned(),
        ureq::Error::BodyExceedsLimit(_) => "its answer is too long".to_owned(),
        _ => "the request fails".to_owned(),
    }
}

#[cfg(test)]
mod tests;
