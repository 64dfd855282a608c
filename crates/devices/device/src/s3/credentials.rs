//! Who this host is to an object store. The keys are where other clients of such stores have them: in the environment, in a file,
//! or with a service of the machine that lends them for a time. They are given to nobody but what signs requests.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusty_s3::Credentials as Keys;
use rusty_s3::credentials::Ec2SecurityCredentialsMetadataResponse as Lent;
use ureq::Agent;

/// Keys that are lent are fetched anew so long before they end.
const RENEW_BEFORE: Duration = Duration::from_secs(300);
/// They are fetched, and a file is read, at most so often.
const PAUSE: Duration = Duration::from_secs(5);
/// A service of the machine answers at once, or is not there.
const SERVICE_TIMEOUT: Duration = Duration::from_secs(2);
/// Where containers have such a service, if only a path is known.
const CONTAINER_SERVICE: &str = "http://169.254.170.2";
/// Where virtual machines have it.
const INSTANCE_SERVICE: &str = "http://169.254.169.254";

/// The variables of a process.
pub(crate) struct Environment(Box<Lookup>);

/// The value of the variable of a name.
type Lookup = dyn Fn(&str) -> Option<String> + Send + Sync;

impl Environment {
    /// This process's own.
    pub(crate) fn own() -> Self {
        Self::of(|name| std::env::var(name).ok())
    }

    pub(crate) fn of(variable: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Box::new(variable))
    }

    /// A variable that is set to something.
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }
}

/// Where the keys come from.
enum Source {
    /// `AWS_ACCESS_KEY_ID` and the like, which stay as they are.
    Variables,
    /// A file that may change.
    File { path: PathBuf, profile: String },
    /// A service of a container: its URL, and what it wants to be shown.
    Container { url: String, token: Option<String>, token_file: Option<PathBuf> },
    /// The service of a virtual machine.
    Instance { service: String },
}

struct Held {
    keys: Arc<Keys>,
    /// When they end, of those that do.
    end: Option<SystemTime>,
    /// When they were last fetched, or tried to be.
    tried: Instant,
}

/// See the module's documentation.
pub(crate) struct Credentials {
    source: Source,
    held: Mutex<Held>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

impl Credentials {
    /// The first that there are.
    ///
    /// # Errors
    /// There are none, or they cannot be read: in words for a person.
    pub(crate) fn find(environment: &Environment) -> Result<Self, String> {
        let variable = |name| environment.get(name);
        if let (Some(key), Some(secret)) = (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"))
        {
            let keys = match variable("AWS_SESSION_TOKEN") {
                Some(token) => Keys::new_with_token(key, secret, token),
                None => Keys::new(key, secret),
            };
            return Ok(Self::of(Source::Variables, keys, None));
        }
        let is_named =
            ["AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE"].into_iter().any(|v| variable(v).is_some());
        let file = Source::file(environment);
        let in_container = Source::container(environment);
        let mut sources = Vec::new();
        if let Some(file @ Source::File { .. }) = file
            && (is_named || matches!(&file, Source::File { path, .. } if path.exists()))
        {
            sources.push(file);
        }
        if !is_named {
            sources.extend(in_container.or_else(|| Source::instance(environment)));
        }
        let mut why = Vec::new();
        for source in sources {
            match source.fetch() {
                Ok((keys, end)) => return Ok(Self::of(source, keys, end)),
                Err(e) => why.push(e),
            }
        }
        if why.is_empty() {
            why.push("nothing else names any".to_owned());
        }
        Err(format!(
            "no credentials for the store: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set, and {}",
            why.join(", and ")
        ))
    }

    fn of(source: Source, keys: Keys, end: Option<SystemTime>) -> Self {
        let held = Held { keys: Arc::new(keys), end, tried: Instant::now() };
        Self { source, held: Mutex::new(held) }
    }

    /// A thread that panics with the lock held leaves what is whole: it is replaced at once.
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What requests are signed with now.
    pub(crate) fn keys(&self) -> Arc<Keys> {
        let mut held = self.held();
        let ends_soon = held.end.is_some_and(|end| end < SystemTime::now() + RENEW_BEFORE);
        if ends_soon {
            self.renew(&mut held);
        }
        Arc::clone(&held.keys)
    }

    /// Whether there are others by now than these, which the store has refused.
    pub(crate) fn have_changed(&self, refused: &Keys) -> bool {
        let mut held = self.held();
        if *held.keys == *refused {
            self.renew(&mut held);
        }
        *held.keys != *refused
    }

    fn renew(&self, held: &mut Held) {
        if matches!(self.source, Source::Variables) || held.tried.elapsed() < PAUSE {
            return;
        }
        held.tried = Instant::now();
        match self.source.fetch() {
            Ok((keys, end)) => (held.keys, held.end) = (Arc::new(keys), end),
            // Those at hand may do, or the store's refusal is told.
            Err(why) => tracing::warn!("the credentials for an object store cannot be renewed: {why}"),
        }
    }
}

impl Source {
    fn file(environment: &Environment) -> Option<Self> {
        let path = environment.get("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from);
        let path = path.or_else(|| Some(Path::new(&environment.get("HOME")?).join(".aws/credentials")))?;
        let profile = environment.get("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
        Some(Self::File { path, profile })
    }

    fn container(environment: &Environment) -> Option<Self> {
        let whole = environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI");
        let url = whole.or_else(|| {
            let path = environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")?;
            Some(format!("{CONTAINER_SERVICE}{path}"))
        })?;
        Some(Self::Container {
            url,
            token: environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN"),
            token_file: environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE").map(PathBuf::from),
        })
    }

    fn instance(environment: &Environment) -> Option<Self> {
        let is_off =
            environment.get("AWS_EC2_METADATA_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true"));
        let service = environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT");
        let service = service.unwrap_or_else(|| INSTANCE_SERVICE.to_owned());
        (!is_off).then(|| Self::Instance { service: service.trim_end_matches('/').to_owned() })
    }

    /// The keys that it has now, and when they end.
    fn fetch(&self) -> Result<(Keys, Option<SystemTime>), String> {
        match self {
            Self::Variables => Err("variables do not change".to_owned()),
            Self::File { path, profile } => {
                let text = fs::read_to_string(path).map_err(|e| {
                    format!("{} cannot be read: {}", path.display(), forebay_block::words_of(&e))
                })?;
                let keys = in_profile(&text, profile).ok_or_else(|| {
                    let path = path.display();
                    format!(
                        "{path} has no aws_access_key_id and aws_secret_access_key in its profile '{profile}'"
                    )
                })?;
                Ok((keys, None))
            }
            Self::Container { url, token, token_file } => {
                let from_file = token_file.as_ref().map(|path| {
                    let read = fs::read_to_string(path);
                    read.map_err(|_| format!("the token for it in {} cannot be read", path.display()))
                });
                let token = from_file.transpose()?.or_else(|| token.clone());
                lent(&ask(url, "GET", token.as_deref().map(|token| ("authorization", token.trim())))?)
            }
            Self::Instance { service } => {
                let ttl = ("x-aws-ec2-metadata-token-ttl-seconds", "300");
                let token = ask(&format!("{service}/latest/api/token"), "PUT", Some(ttl))?;
                let get = |path: &str| {
                    let url = format!("{service}/latest/meta-data/iam/security-credentials/{path}");
                    ask(&url, "GET", Some(("x-aws-ec2-metadata-token", token.as_str())))
                };
                let role = get("")?;
                let role = role.lines().next().filter(|role| !role.is_empty());
                lent(&get(role.ok_or("the machine has no role")?)?)
            }
        }
    }
}

/// The keys of a profile.
fn in_profile(text: &str, profile: &str) -> Option<Keys> {
    let (mut key, mut secret, mut token) = (None, None, None);
    let mut is_in = false;
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.split_once(']')) {
            is_in = name.0.trim() == profile;
        } else if let Some((name, value)) = line.split_once('=').filter(|_| is_in) {
            let value = Some(value.trim()).filter(|value| !value.is_empty());
            match name.trim() {
                "aws_access_key_id" => key = value,
                "aws_secret_access_key" => secret = value,
                "aws_session_token" => token = value,
                _ => {}
            }
        }
    }
    let (key, secret) = (key?, secret?);
    Some(match token {
        Some(token) => Keys::new_with_token(key, secret, token),
        None => Keys::new(key, secret),
    })
}

/// What a service of the machine answers. It is never asked through a proxy.
fn ask(url: &str, method: &str, header: Option<(&str, &str)>) -> Result<String, String> {
    let silent = |_| format!("the service for credentials at {url} does not answer");
    let agent: Agent = Agent::config_builder()
        .timeout_global(Some(SERVICE_TIMEOUT))
        .proxy(None)
        .max_redirects(0)
        .build()
        .into();
    let mut request = ureq::http::Request::builder().method(method).uri(url);
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    // Else it would be sent in chunks, which such a service need not understand.
    if method == "PUT" {
        request = request.header("content-length", "0");
    }
    let request =
        request.body(()).map_err(|_| format!("'{url}' is no address of a service for credentials"))?;
    let mut answer = agent.run(request).map_err(silent)?;
    answer.body_mut().read_to_string().map_err(silent)
}

/// Keys that are lent for a time. What does not fit is not shown.
fn lent(text: &str) -> Result<(Keys, Option<SystemTime>), String> {
    let lent = Lent::deserialize(text).map_err(|_| "the service for credentials lends none".to_owned())?;
    let end = UNIX_EPOCH + Duration::from_secs(u64::try_from(lent.expiration().as_second()).unwrap_or(0));
    Ok((lent.into_credentials(), Some(end)))
}

#[cfg(test)]
impl Credentials {
    /// As if time had passed.
    pub(crate) fn forget_when_tried(&self) {
        self.held().tried -= PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        let variables: Vec<(String, String)> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Environment::of(move |name| variables.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone()))
    }

    fn find(variables: &[(&str, &str)]) -> Result<Credentials, String> {
        Credentials::find(&environment(variables))
    }

    const NO_SERVICE: (&str, &str) = ("AWS_EC2_METADATA_DISABLED", "true");

    #[test]
    fn variables_come_first() {
        let both = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "s3cret")];
        assert_eq!(*find(&both).unwrap().keys(), Keys::new("id", "s3cret"));
        let token = [both[0], both[1], ("AWS_SESSION_TOKEN", "t0ken"), ("AWS_PROFILE", "absent")];
        let found = find(&token).unwrap();
        assert_eq!(*found.keys(), Keys::new_with_token("id", "s3cret", "t0ken"));
        assert_eq!(format!("{found:?}"), "Credentials");
        let keys = found.keys();
        assert!(!found.have_changed(&keys), "they stay as they are");
    }

    #[test]
    fn a_file_is_read_and_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("credentials");
        let name = path.to_str().unwrap();
        let text = "# keys\n[default]\naws_access_key_id=one\naws_secret_access_key = s1\n\n[ other ]\n\
                    aws_access_key_id = two\naws_secret_access_key=s=2\naws_session_token=t2\nregion=x\n";
        fs::write(&path, text).unwrap();
        let file = ("AWS_SHARED_CREDENTIALS_FILE", name);
        let found = find(&[file]).unwrap();
        assert_eq!(*found.keys(), Keys::new("one", "s1"));
        let other = find(&[file, ("AWS_PROFILE", "other")]).unwrap();
        assert_eq!(*other.keys(), Keys::new_with_token("two", "s=2", "t2"));
        let told = find(&[file, ("AWS_PROFILE", "absent")]).unwrap_err();
        assert!(told.contains("in its profile 'absent'") && !told.contains("s1"), "{told}");
        // A key was given up for another one.
        let refused = found.keys();
        fs::write(&path, text.replace("one", "three")).unwrap();
        assert!(!found.have_changed(&refused), "not so soon again");
        found.forget_when_tried();
        assert!(found.have_changed(&refused));
        assert_eq!(*found.keys(), Keys::new("three", "s1"));
        assert!(!found.have_changed(&found.keys()));
        // What is in HOME needs no other variable.
        fs::create_dir(directory.path().join(".aws")).unwrap();
        fs::rename(&path, directory.path().join(".aws/credentials")).unwrap();
        let home = find(&[("HOME", directory.path().to_str().unwrap())]).unwrap();
        assert_eq!(*home.keys(), Keys::new("three", "s1"));
    }

    #[test]
    fn without_any_it_is_said_what_to_set() {
        let told = find(&[NO_SERVICE, ("AWS_ACCESS_KEY_ID", "half")]).unwrap_err();
        assert!(told.contains("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"), "{told}");
        let told = find(&[("AWS_SHARED_CREDENTIALS_FILE", "/absent/credentials")]).unwrap_err();
        assert!(told.contains("/absent/credentials cannot be read: No such file"), "{told}");
    }

    /// Answers requests one after the other, if they begin so, until the last.
    fn serve(answers: Vec<(&'static str, String)>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            for (begin, body) in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    head.push(byte[0]);
                }
                let head = String::from_utf8(head).unwrap();
                let code =
                    if begin.lines().all(|line| head.contains(line)) { "200 OK" } else { "404 Not Found" };
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {code}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
                );
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        address
    }

    fn lent_until(end: &str) -> String {
        format!(
            r#"{{"Code":"Success","AccessKeyId":"lent","SecretAccessKey":"s","Token":"t","Expiration":"{end}"}}"#
        )
    }

    #[test]
    fn a_machine_lends_them_for_a_time() {
        let service = serve(vec![
            ("PUT /latest/api/token HTTP/1.1\nx-aws-ec2-metadata-token-ttl-seconds: 300", "gate".to_owned()),
            (
                "GET /latest/meta-data/iam/security-credentials/ HTTP/1.1\nx-aws-ec2-metadata-token: gate",
                "role\n".to_owned(),
            ),
            (
                "GET /latest/meta-data/iam/security-credentials/role HTTP/1.1",
                lent_until("2020-01-01T00:00:00Z"),
            ),
            ("PUT /latest/api/token HTTP/1.1\ncontent-length: 0", "gate".to_owned()),
            ("GET", "role".to_owned()),
            ("GET", lent_until("2120-01-01T00:00:00Z").replace("lent", "newer")),
        ]);
        let found = find(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", &format!("{service}/"))]).unwrap();
        assert_eq!(*found.keys(), Keys::new_with_token("lent", "s", "t"), "not fetched anew at once");
        found.forget_when_tried();
        assert_eq!(*found.keys(), Keys::new_with_token("newer", "s", "t"));
        found.forget_when_tried();
        assert_eq!(*found.keys(), Keys::new_with_token("newer", "s", "t"), "and not before they end");
    }

    #[test]
    fn a_container_lends_them_to_who_shows_a_token() {
        let token = tempfile::NamedTempFile::new().unwrap();
        fs::write(&token, "pass\n").unwrap();
        let service =
            serve(vec![("GET /keys HTTP/1.1\nauthorization: pass", lent_until("2120-01-01T00:00:00Z"))]);
        let url = format!("{service}/keys");
        let found = find(&[
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.path().to_str().unwrap()),
        ]);
        assert_eq!(*found.unwrap().keys(), Keys::new_with_token("lent", "s", "t"));
        let service = serve(vec![("GET", r#"{"AccessKeyId":"lent","SecretAccessKey":"hidden"}"#.to_owned())]);
        let told = find(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &service)]).unwrap_err();
        assert!(told.contains("lends none") && !told.contains("hidden"), "{told}");
    }
}
