//! Figures that documents name are those of the code. What is private elsewhere is read from its source.

use forebay_control::{FailureKind, Request};
use forebay_nbd::{Limits, MEMORY_BYTES};

use super::nothing;
use super::pages::{Page, What, all, root};

/// How a value is written: its base unit is that of the constant, milliseconds for a `Duration`.
type Shown = fn(u64) -> String;

fn plain(value: u64) -> String {
    value.to_string()
}

fn kib(bytes: u64) -> String {
    (bytes >> 10).to_string()
}

fn mib(bytes: u64) -> String {
    (bytes >> 20).to_string()
}

fn seconds(ms: u64) -> String {
    (ms / 1000).to_string()
}

fn seconds_of_ns(ns: u64) -> String {
    (ns / 1_000_000_000).to_string()
}

fn hours(ms: u64) -> String {
    (ms / 3_600_000).to_string()
}

fn two_in_kib(bytes: u64) -> String {
    kib(2 * bytes)
}

fn two_in_mib(bytes: u64) -> String {
    mib(2 * bytes)
}

fn mib_of_blocks(blocks: u64) -> String {
    mib(blocks * 4096)
}

fn word(value: u64) -> String {
    let words = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
    usize::try_from(value).ok().and_then(|i| words.get(i)).map_or(value.to_string(), |w| (*w).to_owned())
}

fn seconds_in_words(ms: u64) -> String {
    word(ms / 1000)
}

/// Page, words of it around the figure, source below `crates/`, the constant there, and how the page writes it.
const FIGURES: &[(&str, &str, &str, &str, Shown)] = &[
    ("docs/guide/operations.md", "at most {} lines wait", "app/forebay/src/logging.rs", "LINES_MAX", plain),
    (
        "docs/guide/operations.md",
        "nothing has moved for {} seconds",
        "app/forebay/src/ending.rs",
        "STANDSTILL_MAX",
        seconds,
    ),
    (
        "docs/guide/operations.md",
        "or for {} while the backing answers with errors",
        "app/forebay/src/ending.rs",
        "STANDSTILL_FAILING_MAX",
        seconds,
    ),
    (
        "docs/guide/operations.md",
        "after a second and then every {}.",
        "app/forebay/src/ending.rs",
        "TELL_EVERY",
        seconds_in_words,
    ),
    (
        "docs/guide/first-volume.md",
        "two segments of the cache, which are {} MiB at most",
        "core/format/src/layout.rs",
        "SEGMENT_BYTES_MAX",
        two_in_mib,
    ),
    (
        "docs/guide/first-volume.md",
        "the last {} KiB of a device",
        "core/format/src/label.rs",
        "LABEL_COPY_BYTES",
        two_in_kib,
    ),
    (
        "docs/guide/nbd-backing.md",
        "sends nothing for {} s is taken",
        "devices/device/src/nbd/uri.rs",
        "TIMEOUT",
        seconds,
    ),
    (
        "docs/guide/nbd-backing.md",
        "for {} times the limit is stuck",
        "devices/device/src/nbd/connections.rs",
        "STUCK_LIMITS",
        word,
    ),
    (
        "docs/guide/nbd-backing.md",
        "own: {} s for a connection",
        "devices/device/src/nbd/handshake.rs",
        "CONNECT_MAX",
        seconds,
    ),
    (
        "docs/guide/nbd-backing.md",
        "and {} s from there",
        "devices/device/src/nbd/handshake.rs",
        "HANDSHAKE_MAX",
        seconds,
    ),
    (
        "docs/guide/nbd-backing.md",
        "Operations wait {} s for a server that is away",
        "devices/device/src/remote/mod.rs",
        "AWAY_MAX",
        seconds,
    ),
    (
        "docs/guide/nbd-backing.md",
        "is found {} s after the first operation",
        "core/engine/src/watch.rs",
        "SILENT_AFTER_MS",
        seconds,
    ),
    ("docs/guide/admission.md", "at most {} ranges", "core/policy/src/ranges.rs", "RANGES_MAX", plain),
    (
        "docs/guide/admission.md",
        "has not been so for {} s",
        "core/policy/src/destaging.rs",
        "ROOMY_AGAIN_NS",
        seconds_of_ns,
    ),
    (
        "docs/guide/admission.md",
        "of these control groups; at most {} |",
        "watch/tracker/src/hints.rs",
        "LISTED_MAX",
        plain,
    ),
    (
        "docs/guide/admission.md",
        "the {} oldest outstanding writes",
        "watch/tracker/src/tracker.rs",
        "SLOTS_AT_ONCE",
        word,
    ),
    (
        "docs/guide/admission.md",
        "is looked at every {} seconds",
        "watch/tracker/src/tasks.rs",
        "LOOK_AGAIN_IN",
        word,
    ),
    ("docs/guide/tenants.md", "At most {} rules have one", "watch/tracker/src/wire.rs", "RATES_MAX", plain),
    (
        "docs/guide/cache-failure.md",
        "It is tried every {} seconds",
        "core/engine/src/backing/unreadable.rs",
        "UNREADABLE_RETRY_MS",
        seconds_in_words,
    ),
    (
        "docs/guide/consistency-points.md",
        "zeroes more than {} MiB",
        "core/engine/src/client/cut.rs",
        "ZERO_BLOCKS_LOGGED_MAX",
        mib_of_blocks,
    ),
    (
        "docs/guide/media.md",
        "blocks of more than {} bytes is refused",
        "core/format/src/logical_block.rs",
        "LOGICAL_BLOCK_MAX",
        plain,
    ),
    ("docs/reference/check.md", "At most {} objects", "lab/verify/src/finding.rs", "FINDINGS_MAX", plain),
    ("docs/reference/cli.md", "ms to {}h) or a size", "core/policy/src/settings.rs", "TIME_MS_MAX", hours),
    ("docs/reference/cli.md", "a time (5s; {}ms to", "core/policy/src/staleness.rs", "AGE_MS_MIN", plain),
    ("docs/reference/cli.md", "at least {}K)", "core/policy/src/staleness.rs", "BYTES_MIN", kib),
    ("docs/reference/config.md", "(at most \"{}h\")", "core/policy/src/settings.rs", "TIME_MS_MAX", hours),
    ("docs/reference/config.md", "(\"{}ms\" to", "core/policy/src/staleness.rs", "AGE_MS_MIN", plain),
    ("docs/reference/config.md", "(at least \"{}K\")", "core/policy/src/staleness.rs", "BYTES_MIN", kib),
    (
        "docs/reference/exit-codes.md",
        "takes no connection within {} s",
        "app/control/src/client.rs",
        "CONNECT_MAX",
        seconds,
    ),
    (
        "docs/reference/json.md",
        "has not answered for {} s |",
        "app/forebay/src/health.rs",
        "THREAD_SILENT_AFTER",
        seconds,
    ),
    (
        "docs/reference/json.md",
        "had a read or a write for {} s",
        "core/engine/src/watch.rs",
        "SILENT_AFTER_MS",
        seconds,
    ),
    (
        "docs/reference/json.md",
        "one operation has taken {} s",
        "core/engine/src/watch.rs",
        "HUNG_AFTER_MS",
        seconds,
    ),
    (
        "docs/reference/json.md",
        "for {} s nothing has failed",
        "core/engine/src/watch.rs",
        "SETTLED_AFTER_MS",
        seconds,
    ),
    ("docs/reference/nbd.md", "at most {} extents", "core/block/src/service.rs", "STATUS_EXTENTS_MAX", plain),
    ("docs/reference/nbd.md", "had some in the last {} ms", "app/host/src/survey.rs", "BUSY", plain),
    ("docs/reference/nbd.md", "at most {} such lines", "frontends/nbd/src/complaints.rs", "LINES_MAX", word),
    (
        "docs/reference/nbd.md",
        "such lines in {} seconds",
        "frontends/nbd/src/complaints.rs",
        "PERIOD",
        seconds_in_words,
    ),
];

/// The value of a constant's expression: a product or shift of numbers, or a `Duration` of them, in milliseconds.
fn value_of(expression: &str) -> Option<u64> {
    if let Some(arguments) = expression.strip_prefix("Duration::from_") {
        let (unit, number) = arguments.strip_suffix(')')?.split_once('(')?;
        let scale = match unit {
            "secs" => 1000,
            "millis" => 1,
            _ => return None,
        };
        return Some(value_of(number)? * scale);
    }
    if let Some((left, right)) = expression.split_once("<<") {
        return Some(value_of(left)? << value_of(right)?);
    }
    expression.split('*').map(|number| number.trim().replace('_', "").parse::<u64>().ok()).product()
}

fn constant(source: &str, name: &str) -> Option<u64> {
    let (_, declared) = source.split_once(&format!("const {name}: "))?;
    let (_, expression) = declared.split_once(';')?.0.split_once('=')?;
    value_of(expression.trim())
}

fn page<'a>(pages: &'a [Page], path: &str) -> &'a Page {
    pages.iter().find(|page| page.path == path).unwrap()
}

/// The numbers of a line that have a point.
fn decimals(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_ascii_digit() && c != '.')
        .filter(|number| number.parse::<f64>().is_ok() && number.contains('.'))
}

/// All words of a page, one blank between two.
fn words_of(page: &Page) -> String {
    page.text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn lacking(page: &Page, words: &str) -> Option<String> {
    (!words_of(page).contains(words)).then(|| page.fault(1, &format!("it lacks: {words}")))
}

#[test]
fn figures_are_those_of_the_code() {
    let pages = all();
    let mut found = Vec::new();
    for (path, words, source, name, shown) in FIGURES {
        let text = std::fs::read_to_string(root().join("crates").join(source)).unwrap();
        match constant(&text, name) {
            None => found.push(format!("crates/{source} has no constant {name} of a known form")),
            Some(value) => found.extend(lacking(page(&pages, path), &words.replace("{}", &shown(value)))),
        }
    }
    nothing(&found);
}

#[test]
fn exit_codes_and_silences_are_those_of_the_code() {
    let pages = all();
    let page = page(&pages, "docs/reference/exit-codes.md");
    let volume = || String::from("db");
    let codes = [
        (FailureKind::Failed, "failed:"),
        (FailureKind::Usage, "wrong usage:"),
        (FailureKind::Refused, "refused for safety:"),
        (FailureKind::Corrupt, "corruption found"),
    ];
    let codes = codes.map(|(kind, words)| format!("| {} | {words}", kind.exit_code()));
    let silences = [
        ("`status`", Request::Status { volume: None }),
        ("`set`, `explain`, `waits`", Request::Explain { volume: volume() }),
        ("`flush`, `mark`, `checkpoint`, `attach`, `detach`", Request::Attach { volume: volume() }),
    ];
    let silences =
        silences.map(|(commands, request)| format!("| {commands} | {} s |", request.silence_max().as_secs()));
    nothing(&codes.iter().chain(&silences).filter_map(|words| lacking(page, words)).collect::<Vec<_>>());
}

#[test]
fn limits_of_nbd_clients_are_those_of_the_code() {
    let pages = all();
    let limits = Limits::default();
    let config = [
        format!("nbd-connections = {} ", limits.connections_max),
        format!("nbd-connections-per-address = {} ", limits.connections_per_source_max),
        format!("nbd-handshake-time = \"{}s\"", limits.handshake_timeout.as_secs()),
        format!("nbd-memory = \"{}M\"", MEMORY_BYTES >> 20),
    ];
    let memory = format!("take up to {} MiB on each NBD connection", limits.bytes_in_flight_max >> 20);
    let config = config.iter().filter_map(|words| lacking(page(&pages, "docs/reference/config.md"), words));
    nothing(&config.chain(lacking(page(&pages, "docs/guide/operations.md"), &memory)).collect::<Vec<_>>());
}

/// The README takes its ratios from a run that a page describes, the first that the section names: they stand there, too, in lines
/// on the same contender.
#[test]
fn ratios_of_the_readme_were_measured() {
    let pages = all();
    let (_, section) = page(&pages, "README.md").text.split_once("\n## How fast it is\n").unwrap();
    let section = section.split_once("\n## ").unwrap().0;
    let source = Page::of("README.md", section).parts(What::Link).next().unwrap().text.clone();
    let measured = &page(&pages, &source).text;
    let mut found = Vec::new();
    for contender in ["engine", "NBD", "attached"] {
        let row = section.lines().find(|line| line.starts_with('|') && line.contains(contender)).unwrap();
        let numbers: Vec<&str> =
            measured.lines().filter(|line| line.contains(contender)).flat_map(decimals).collect();
        let ratios: Vec<&str> = decimals(row).collect();
        assert_eq!(ratios.len(), 4, "{row}");
        found.extend(
            ratios
                .iter()
                .filter(|ratio| !numbers.contains(ratio))
                .map(|ratio| format!("README.md: {ratio} of {contender} is not in {source}")),
        );
    }
    nothing(&found);
}

#[test]
fn the_version_of_rust_is_that_of_the_workspace() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let version = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    for path in ["README.md", "scripts/setup.sh"] {
        assert!(read(path).contains(&format!("Rust {version} or later")), "{path}");
    }
}

#[test]
fn constants_are_read_as_rust_reads_them() {
    let source = "pub const A: u64 = 64 << 20;\nconst B: Duration = Duration::from_millis(1_500);\nconst C: u64 = 365 * 24;\nconst D: u8 = A;";
    let values = ["A", "B", "C", "D", "E"].map(|name| constant(source, name));
    assert_eq!(values, [Some(64 << 20), Some(1500), Some(365 * 24), None, None]);
}
