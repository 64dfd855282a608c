//! Answers of a store, word by word, and what they mean.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::Mutex;
use std::thread;

use super::*;

/// What is done with a connection, or written to it.
#[derive(Clone, Copy)]
enum Reply {
    /// Status line and headers, and a body.
    Whole(&'static str, &'static str),
    /// The same, of which less comes than is said.
    Broken(&'static str, &'static str),
    /// The connection ends.
    End,
    /// Nothing comes.
    Silence,
}

/// A store that answers as it is told, one request after the other, and what it was asked.
struct Script {
    address: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Script {
    fn of(replies: Vec<Reply>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        thread::spawn(move || {
            let mut silent = Vec::new();
            for reply in replies {
                let (mut stream, _) = listener.accept().unwrap();
                log.lock().unwrap().push(read_request(&mut stream));
                match reply {
                    Reply::Whole(head, body) => answer(&mut stream, head, body.len(), body),
                    Reply::Broken(head, body) => answer(&mut stream, head, body.len() + 1, body),
                    Reply::End => {}
                    Reply::Silence => silent.push(stream),
                }
            }
            // Nobody is there for more.
            drop(listener);
        });
        Self { address, asked }
    }

    fn client(&self, timeout: &str) -> Client {
        self.client_of(timeout, |name| match name {
            "AWS_ACCESS_KEY_ID" => Some("hidden-id".to_owned()),
            "AWS_SECRET_ACCESS_KEY" => Some("hidden-secret".to_owned()),
            "AWS_SESSION_TOKEN" => Some("hidden-token".to_owned()),
            _ => None,
        })
    }

    fn client_of(
        &self,
        timeout: &str,
        variable: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) -> Client {
        let spec = format!("//bucket/volumes/db,endpoint={},timeout={timeout}", self.address);
        Client::new(&S3Spec::read(&spec).unwrap(), &Environment::of(variable), 4).unwrap()
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn answer(stream: &mut TcpStream, head: &str, length: usize, body: &str) {
    write!(stream, "HTTP/1.1 {head}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}").unwrap();
}

/// Head and body of a request.
fn read_request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
    let head = String::from_utf8(bytes.clone()).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).unwrap();
    bytes.extend(body);
    String::from_utf8(bytes).unwrap()
}

fn create() -> Request {
    Request::Create { name: "log/1".to_owned(), bytes: Arc::new(b"an object".to_vec()) }
}

fn get(from: u64, len: u64) -> Request {
    Request::Get { name: "log/1".to_owned(), from, len }
}

fn told(reply: Reply, request: &Request) -> Result<Answer, StoreError> {
    Script::of(vec![reply]).client("5s").carry_out(request)
}

#[test]
fn requests_are_what_a_store_expects() {
    let page = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
                <IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>\
                <EncodingType>url</EncodingType><Contents><Key>volumes%2Fdb%2Flog%2F1</Key><Size>9</Size></Contents>\
                </ListBucketResult>";
    let script = Script::of(vec![
        Reply::Whole("200 OK", ""),
        Reply::Whole("206 Partial Content\r\ncontent-range: bytes 2-5/9", " obj"),
        Reply::Whole("200 OK", page),
        Reply::Whole("204 No Content", ""),
    ]);
    let client = script.client("5s");
    assert_eq!(client.carry_out(&create()), Ok(Answer::Created));
    assert_eq!(client.carry_out(&get(2, 4)), Ok(Answer::Object { bytes: b" obj".to_vec(), size: 9 }));
    let list = Request::List { prefix: "log/".to_owned(), after: "log/0".to_owned() };
    assert_eq!(client.carry_out(&list), Ok(Answer::Page { names: vec!["log/1".to_owned()], more: true }));
    assert_eq!(client.carry_out(&Request::Delete { name: "log/1".to_owned() }), Ok(Answer::Deleted));
    let asked = script.asked();
    for (asked, words) in asked.iter().zip([
        &["PUT /bucket/volumes/db/log/1?", "if-none-match: *", "host%3Bif-none-match", "an object"][..],
        &["GET /bucket/volumes/db/log/1?", "range: bytes=2-5\r\n"],
        &[
            "GET /bucket/?",
            "prefix=volumes%2Fdb%2Flog%2F&",
            "start-after=volumes%2Fdb%2Flog%2F0",
            "list-type=2",
        ],
        &["DELETE /bucket/volumes/db/log/1?"],
    ]) {
        for word in words.iter().chain(&["X-Amz-Signature="]) {
            assert!(asked.contains(word), "{word}: {asked}");
        }
        assert!(!asked.contains("hidden-secret"), "{asked}");
    }
}

#[test]
fn every_refusal_has_its_meaning() {
    const EXISTS: &str = "<Error><Code>PreconditionFailed</Code><Message>At least one</Message></Error>";
    let refused = |what: &str| Err(StoreError::Refused(what.to_owned()));
    let unknown = |what: &str| Err(StoreError::Unknown(what.to_owned()));
    for (head, body, meaning) in [
        ("412 Precondition Failed", EXISTS, Err(StoreError::Exists)),
        ("409 Conflict", "<Error><Code>ConditionalRequestConflict</Code></Error>", Err(StoreError::Exists)),
        ("500 Internal Server Error", "", unknown("500 Internal Server Error")),
        ("502 Bad Gateway", "<html>", unknown("502 Bad Gateway")),
        ("408 Request Timeout", "", unknown("408 Request Timeout")),
        ("400 Bad Request", "<Error><Code>RequestTimeout</Code></Error>", unknown("400 RequestTimeout")),
        (
            "503 Slow Down",
            "<Error><Code>SlowDown</Code></Error>",
            Err(StoreError::Busy("503 SlowDown".to_owned())),
        ),
        ("429 Too Many Requests", "", Err(StoreError::Busy("429 Too Many Requests".to_owned()))),
        ("507 Insufficient Storage", "", Err(StoreError::Full("507 Insufficient Storage".to_owned()))),
        (
            "403 Forbidden",
            "<Error><Code>QuotaExceeded</Code></Error>",
            Err(StoreError::Full("403 QuotaExceeded".to_owned())),
        ),
        (
            "403 Forbidden",
            "<Error><Code>AccessDenied</Code><Message>Access\nDenied</Message></Error>",
            Err(StoreError::Denied("403 AccessDenied: Access Denied".to_owned())),
        ),
        (
            "404 Not Found",
            "<Error><Code>NoSuchBucket</Code><Message></Message></Error>",
            Err(StoreError::NoBucket("404 NoSuchBucket".to_owned())),
        ),
        // Another store is where it says. Keys are not sent there.
        ("301 Moved Permanently\r\nlocation: http://127.0.0.1:1/", "", refused("301 Moved Permanently")),
        ("400 Bad Request", "<Error><Code>EntityTooLarge</Code></Error>", refused("400 EntityTooLarge")),
    ] {
        assert_eq!(told(Reply::Whole(head, body), &create()), meaning, "{head}");
    }
    let missing = Reply::Whole("404 Not Found", "<Error><Code>NoSuchKey</Code></Error>");
    assert_eq!(told(missing, &get(0, 9)), Err(StoreError::Missing));
    assert_eq!(told(missing, &Request::Delete { name: "log/1".to_owned() }), Ok(Answer::Deleted));
    let no_bucket = Reply::Whole("404 Not Found", "<Error><Code>NoSuchBucket</Code></Error>");
    assert_eq!(told(no_bucket, &get(0, 9)), Err(StoreError::NoBucket("404 NoSuchBucket".to_owned())));
    let long = Box::leak(format!("<Message>{}</Message>", "x".repeat(9999)).into_boxed_str());
    let Err(StoreError::Refused(long)) = told(Reply::Whole("400 Bad Request", long), &create()) else {
        panic!()
    };
    assert!(long.len() < 300, "{long}");
}

#[test]
fn parts_of_objects_come_as_they_are() {
    let object = |bytes: &str, size| Ok(Answer::Object { bytes: bytes.as_bytes().to_vec(), size });
    let part = "206 Partial Content\r\ncontent-range: bytes 4-8/9";
    assert_eq!(told(Reply::Whole(part, "bject"), &get(4, 100)), object("bject", 9));
    assert_eq!(told(Reply::Whole("200 OK", "an object"), &get(0, 100)), object("an object", 9));
    let behind = "416 Range Not Satisfiable\r\ncontent-range: bytes */9";
    assert_eq!(told(Reply::Whole(behind, "<Error/>"), &get(9, 1)), object("", 9));
    assert_eq!(told(Reply::Whole("416 Range Not Satisfiable", ""), &get(9, 1)), object("", 0));
    for (reply, request) in [
        (Reply::Broken(part, "bjec"), get(4, 100)),
        (Reply::Whole(part, "bjec"), get(4, 100)),
        (Reply::Whole(part, "bjects"), get(4, 100)),
    ] {
        assert!(matches!(told(reply, &request), Err(StoreError::Unknown(_))));
    }
    for (reply, request) in [
        (Reply::Whole("206 Partial Content", "bject"), get(4, 100)),
        (Reply::Whole("200 OK", "an object"), get(4, 5)),
        (Reply::Whole("200 OK", "an object"), get(0, 5)),
    ] {
        assert!(matches!(told(reply, &request), Err(StoreError::Refused(_))));
    }
    let list = Request::List { prefix: String::new(), after: String::new() };
    for strange in
        ["", "<html>", "<ListBucketResult><Contents><Key>elsewhere</Key></Contents></ListBucketResult>"]
    {
        assert!(
            matches!(told(Reply::Whole("200 OK", strange), &list), Err(StoreError::Refused(_))),
            "{strange}"
        );
    }
}

/// What was sent may have been carried out, unless nothing was. Nothing is sent twice.
#[test]
fn no_answer_is_no_refusal() {
    for request in [create(), get(0, 9)] {
        for (reply, words) in [(Reply::End, ""), (Reply::Silence, "nothing comes in time")] {
            let script = Script::of(vec![reply, Reply::Whole("200 OK", "")]);
            let Err(StoreError::Unknown(told)) = script.client("1s").carry_out(&request) else { panic!() };
            assert!(told.contains(words) && !told.contains("hidden") && !told.contains("X-Amz"), "{told}");
            assert_eq!(script.asked().len(), 1);
        }
    }
    let nobody = Script::of(Vec::new());
    let client = nobody.client("1s");
    // It goes at once, as nothing is to be answered.
    let refused = loop {
        match client.carry_out(&create()) {
            Err(StoreError::Busy(told)) => break told,
            Err(StoreError::Unknown(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused, "Connection refused");
}

#[test]
fn keys_that_were_exchanged_are_used_at_once() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let write = |id: &str| {
        std::fs::write(&file, format!("[default]\naws_access_key_id={id}\naws_secret_access_key=s\n"))
            .unwrap();
    };
    write("old-id");
    let refusal = Reply::Whole("403 Forbidden", "<Error><Code>InvalidAccessKeyId</Code></Error>");
    let script = Script::of(vec![refusal, refusal, Reply::Whole("200 OK", ""), refusal]);
    let path = file.path().to_str().unwrap().to_owned();
    let client =
        script.client_of("5s", move |name| (name == "AWS_SHARED_CREDENTIALS_FILE").then(|| path.clone()));
    let denied = Err(StoreError::Denied("403 InvalidAccessKeyId".to_owned()));
    assert_eq!(client.carry_out(&create()), denied);
    write("new-id");
    client.credentials.forget_when_tried();
    assert_eq!(client.carry_out(&create()), Ok(Answer::Created));
    assert_eq!(client.carry_out(&create()), denied, "the new ones are refused, too");
    let asked = script.asked();
    let with =
        |id: &str| asked.iter().filter(|asked| asked.contains(&format!("X-Amz-Credential={id}"))).count();
    assert_eq!((with("old-id"), with("new-id")), (2, 2));
}

#[test]
fn where_a_store_is() {
    let bucket = |rest: &str, variables: &'static [(&str, &str)]| {
        let spec = S3Spec::read(rest).unwrap();
        let environment = Environment::of(|name| {
            let found = variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
            found.or_else(|| {
                name.starts_with("AWS_").then(|| "key".to_owned()).filter(|_| name.contains("_KEY"))
            })
        });
        Client::new(&spec, &environment, 1).map(|client| client.bucket.base_url().to_string())
    };
    for (rest, variables, url) in [
        ("//bucket/db", &[("AWS_REGION", "eu-1")][..], "https://bucket.s3.eu-1.amazonaws.com/"),
        ("//a.bucket/db", &[("AWS_DEFAULT_REGION", "eu-1")], "https://s3.eu-1.amazonaws.com/a.bucket/"),
        ("//bucket/db,region=eu-2", &[("AWS_REGION", "eu-1")], "https://bucket.s3.eu-2.amazonaws.com/"),
        ("//bucket/db", &[("AWS_ENDPOINT_URL", "http://store:9000")], "http://store:9000/bucket/"),
        (
            "//bucket/db",
            &[("AWS_ENDPOINT_URL", "http://store:9000"), ("AWS_ENDPOINT_URL_S3", "http://s3:1/x")],
            "http://s3:1/x/bucket/",
        ),
        (
            "//bucket/db,endpoint=https://given",
            &[("AWS_ENDPOINT_URL", "http://store:9000")],
            "https://given/bucket/",
        ),
    ] {
        assert_eq!(bucket(rest, variables).as_deref(), Ok(url));
    }
    let told = bucket("//bucket/db", &[]).unwrap_err();
    assert!(told.contains("endpoint=URL") && told.contains("AWS_REGION"), "{told}");
    let told = bucket("//bucket/db", &[("AWS_ENDPOINT_URL", "http://key:hidden@store")]).unwrap_err();
    assert!(told.starts_with("in AWS_ENDPOINT_URL, its endpoint is") && !told.contains("hidden"), "{told}");
}
