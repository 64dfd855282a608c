//! Who this host is to an object store. The keys are where other clients of such stores have them: in the environment, in a file,
//! or with a service of the machine that lends them for a time. They are given to nobody but what signs requests.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rusty_s3::Credentials as Keys;

use crate::s3::lending::{ask, assume_role, lent};

/// Keys that are lent are fetched anew so long before they end.
const RENEW_BEFORE: Duration = Duration::from_secs(300);
/// They are fetched, and a file is read, at most so often.
const PAUSE: Duration = Duration::from_secs(5);
/// Where containers have such a service, if only a path is known.
const CONTAINER_SERVICE: &str = "http://169.254.170.2";
/// The token service of all of Amazon, for whoever is in no region.
const TOKEN_SERVICE: &str = "https://sts.amazonaws.com";
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
    /// A token in a file, which may change, and for which a token service lends the keys of a role.
    WebIdentity { service: String, role: String, session: String, token_file: PathBuf },
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
        let mut sources: Vec<Source> = Source::web_identity(environment).into_iter().collect();
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
    /// Both variables belong to it: one alone may be left of something else.
    fn web_identity(environment: &Environment) -> Option<Self> {
        let token_file = PathBuf::from(environment.get("AWS_WEB_IDENTITY_TOKEN_FILE")?);
        let role = environment.get("AWS_ROLE_ARN")?;
        let session = environment.get("AWS_ROLE_SESSION_NAME");
        let session = session.unwrap_or_else(|| format!("forebay-{}", std::process::id()));
        let given = environment.get("AWS_ENDPOINT_URL_STS").or_else(|| environment.get("AWS_ENDPOINT_URL"));
        let region = environment.get("AWS_REGION").or_else(|| environment.get("AWS_DEFAULT_REGION"));
        let service = given.unwrap_or_else(|| match region {
            Some(region) => format!("https://sts.{region}.amazonaws.com"),
            None => TOKEN_SERVICE.to_owned(),
        });
        Some(Self::WebIdentity { service, role, session, token_file })
    }

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
            Self::WebIdentity { service, role, session, token_file } => {
                let token = fs::read_to_string(token_file).map_err(|e| {
                    let (path, why) = (token_file.display(), forebay_block::words_of(&e));
                    format!("the token in {path} (AWS_WEB_IDENTITY_TOKEN_FILE) cannot be read: {why}")
                })?;
                assume_role(service, role, session, token.trim())
            }
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

    /// Answers requests one after the other, if they have these lines, until the last. What they must not have begins with `!`.
    fn serve(answers: Vec<(&'static str, String)>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            for (lines, body) in answers {
                let (stream, _) = listener.accept().unwrap();
                answer(stream, lines, &body);
            }
        });
        address
    }

    fn answer(mut stream: impl Read + Write, lines: &str, body: &str) {
        let mut request = Vec::new();
        let mut byte = [0];
        while !request.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            request.push(byte[0]);
        }
        let head = String::from_utf8(request).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut sent = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        stream.read_exact(&mut sent).unwrap();
        let request = head + &String::from_utf8(sent).unwrap();
        let is_fit = |line: &str| match line.strip_prefix('!') {
            Some(line) => !request.contains(line),
            None => request.contains(line),
        };
        let code = if lines.lines().all(is_fit) { "200 OK" } else { "403 Forbidden" };
        let length = body.len();
        let answer =
            format!("HTTP/1.1 {code}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).unwrap();
        stream.flush().unwrap();
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

    /// As a token service answers, with what is not asked for.
    fn assumed(key: &str, end: &str) -> String {
        format!(
            "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\n\
             <AssumeRoleWithWebIdentityResult>\n<AssumedRoleUser><Arn>arn:x</Arn></AssumedRoleUser>\n\
             <Credentials>\n<SessionToken>t/+=</SessionToken>\n<SecretAccessKey>s/+=</SecretAccessKey>\n\
             <Expiration>{end}</Expiration>\n<AccessKeyId>{key}</AccessKeyId>\n</Credentials>\n\
             </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        )
    }

    const ASKS: &str = "POST / HTTP/1.1\ncontent-type: application/x-www-form-urlencoded\ncontent-length: \n\
                        !transfer-encoding\n!authorization\nAction=AssumeRoleWithWebIdentity&Version=2011-06-15&\
                        RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fdb&RoleSessionName=here&WebIdentityToken=a.b-c_d\n\
                        !a.b-c_d%0A";

    #[test]
    fn a_token_in_a_file_is_exchanged_for_keys_that_end() {
        let directory = tempfile::tempdir().unwrap();
        let token = directory.path().join("token");
        fs::write(&token, "a.b-c_d\n").unwrap();
        let file = directory.path().join("credentials");
        fs::write(&file, "[default]\naws_access_key_id=file\naws_secret_access_key=f\n").unwrap();
        let newer = ASKS.replace("a.b-c_d", "newer").leak();
        let service = serve(vec![
            (ASKS, assumed("first", "2020-01-01T00:00:00Z")),
            (newer, assumed("second", "2120-01-01T00:00:00Z")),
        ]);
        let role = [
            ("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().unwrap()),
            ("AWS_ROLE_ARN", "arn:aws:iam::1:role/db"),
            ("AWS_ROLE_SESSION_NAME", "here"),
            ("AWS_SHARED_CREDENTIALS_FILE", file.to_str().unwrap()),
        ];
        let found = find(&[&role[..], &[("AWS_ENDPOINT_URL_STS", service.as_str())]].concat()).unwrap();
        assert_eq!(*found.keys(), Keys::new_with_token("first", "s/+=", "t/+="), "before the file");
        fs::write(&token, "newer").unwrap();
        found.forget_when_tried();
        assert_eq!(
            *found.keys(),
            Keys::new_with_token("second", "s/+=", "t/+="),
            "with what the file has now"
        );
        // Variables come before it, and without a role it is none.
        let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "s")];
        assert_eq!(*find(&[&role[..], &keys].concat()).unwrap().keys(), Keys::new("id", "s"));
        assert_eq!(*find(&[role[0], role[3]]).unwrap().keys(), Keys::new("file", "f"));
    }

    #[test]
    fn what_a_token_service_says_against_it_is_told_without_the_token() {
        let token = tempfile::NamedTempFile::new().unwrap();
        fs::write(&token, "hidden").unwrap();
        let refuses = |body: &str, path: &str| {
            let service = serve(vec![("never", body.to_owned())]);
            let told = find(&[
                ("AWS_WEB_IDENTITY_TOKEN_FILE", path),
                ("AWS_ROLE_ARN", "arn"),
                ("AWS_ENDPOINT_URL", service.as_str()),
                NO_SERVICE,
            ]);
            told.unwrap_err()
        };
        let path = token.path().to_str().unwrap();
        let told = refuses("<ErrorResponse><Error><Code>ExpiredToken</Code></Error></ErrorResponse>", path);
        assert!(told.ends_with("answers 403 ExpiredToken") && !told.contains("hidden"), "{told}");
        let told = refuses("", "/absent/token");
        assert!(
            told.contains("/absent/token (AWS_WEB_IDENTITY_TOKEN_FILE) cannot be read: No such"),
            "{told}"
        );
    }

    const TLS_URL: &str = "FOREBAY_TEST_TLS_URL";

    /// The authorities that are trusted are named by a variable of the process, so that the test starts itself again.
    #[test]
    fn a_container_lends_them_over_tls() {
        let test = "s3::credentials::tests::a_container_lends_them_over_tls";
        if let Ok(url) = std::env::var(TLS_URL) {
            let found = find(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url)]).unwrap();
            assert_eq!(*found.keys(), Keys::new_with_token("lent", "s", "t"));
            return;
        }
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let trusted = tempfile::NamedTempFile::new().unwrap();
        fs::write(&trusted, made.cert.pem()).unwrap();
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key.into())
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://localhost:{}/keys", listener.local_addr().unwrap().port());
        thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let tls = rustls::ServerConnection::new(Arc::new(config)).unwrap();
            let stream = rustls::StreamOwned::new(tls, stream);
            answer(stream, "GET /keys HTTP/1.1", &lent_until("2120-01-01T00:00:00Z"));
        });
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(TLS_URL, url)
            .env("SSL_CERT_FILE", trusted.path())
            .env_remove("SSL_CERT_DIR")
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
    }
}
