//! Services that lend keys for a time: those of a machine, and token services. They are never asked through a proxy, and what they answer is
//! shown to nobody.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusty_s3::Credentials as Keys;
use rusty_s3::credentials::Ec2SecurityCredentialsMetadataResponse as Lent;
use ureq::http::Request;
use ureq::{Agent, Body, http};
use url::form_urlencoded::Serializer;

use crate::s3::tls::tls;
use crate::s3::xml::element;

/// A service of the machine answers at once, or is not there.
const MACHINE_TIMEOUT: Duration = Duration::from_secs(2);
/// A token service is somewhere else.
const TOKEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest key or token, in bytes: so much is more than what services lend.
const TOKEN_CHARS_MAX: usize = 16 << 10;

/// Keys, and when they end.
type Keyring = (Keys, Option<SystemTime>);

/// What a service of the machine answers.
pub(super) fn ask(url: &str, method: &str, header: Option<(&str, &str)>) -> Result<String, String> {
    let mut request = Request::builder().method(method).uri(url);
    if let Some((name, value)) = header {
        request = request.header(name, value);
    }
    // Else it would be sent in chunks, which such a service need not understand.
    if method == "PUT" {
        request = request.header("content-length", "0");
    }
    let request = request.body(()).map_err(|_| is_no_address(url))?;
    let agent = agent(url, MACHINE_TIMEOUT)?;
    well(url, agent.run(request))
}

/// Keys of a role, lent to whoever has this token. The request is not signed: the token is what is shown.
pub(super) fn assume_role(service: &str, role: &str, session: &str, token: &str) -> Result<Keyring, String> {
    let url = format!("{}/", service.trim_end_matches('/'));
    let form = Serializer::new(String::new())
        .append_pair("Action", "AssumeRoleWithWebIdentity")
        .append_pair("Version", "2011-06-15")
        .append_pair("RoleArn", role)
        .append_pair("RoleSessionName", session)
        .append_pair("WebIdentityToken", token)
        .finish();
    let request = Request::builder()
        .method("POST")
        .uri(&url)
        .header("content-type", "application/x-www-form-urlencoded")
        .header("content-length", form.len().to_string())
        .body(form)
        .map_err(|_| is_no_address(&url))?;
    let text = well(&url, agent(&url, TOKEN_TIMEOUT)?.run(request))?;
    let field = |name| {
        let found = element(&text, name, TOKEN_CHARS_MAX);
        let is_plain = |c: char| c.is_ascii_graphic() && !"\"\\<>&".contains(c);
        if found.is_empty() || !found.chars().all(is_plain) { Err(lends_none()) } else { Ok(found) }
    };
    lent(&format!(
        r#"{{"Code":"Success","AccessKeyId":"{}","SecretAccessKey":"{}","Token":"{}","Expiration":"{}"}}"#,
        field("AccessKeyId")?,
        field("SecretAccessKey")?,
        field("SessionToken")?,
        field("Expiration")?,
    ))
}

/// Keys that are lent for a time. What does not fit is not shown.
pub(super) fn lent(text: &str) -> Result<Keyring, String> {
    let lent = Lent::deserialize(text).map_err(|_| lends_none())?;
    let end = UNIX_EPOCH + Duration::from_secs(u64::try_from(lent.expiration().as_second()).unwrap_or(0));
    Ok((lent.into_credentials(), Some(end)))
}

fn agent(url: &str, timeout: Duration) -> Result<Agent, String> {
    let config = Agent::config_builder()
        .timeout_global(Some(timeout))
        .proxy(None)
        .max_redirects(0)
        .http_status_as_error(false);
    let config = if url.starts_with("https:") { config.tls_config(tls()?) } else { config };
    Ok(config.build().into())
}

/// The text of an answer that is well.
fn well(url: &str, answer: Result<http::Response<Body>, ureq::Error>) -> Result<String, String> {
    let silent = |_| format!("the service for credentials at {url} does not answer");
    let mut answer = answer.map_err(silent)?;
    let text = answer.body_mut().read_to_string().map_err(silent)?;
    let status = answer.status();
    if status.is_success() {
        return Ok(text);
    }
    let code = element(&text, "Code", TOKEN_CHARS_MAX);
    let code = if code.is_empty() { status.canonical_reason().unwrap_or_default() } else { &code };
    Err(format!("the service for credentials at {url} answers {} {code}", status.as_u16()))
}

fn lends_none() -> String {
    "the service for credentials lends none".to_owned()
}

fn is_no_address(url: &str) -> String {
    format!("'{url}' is no address of a service for credentials")
}
