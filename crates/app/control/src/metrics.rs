//! The status of volumes as Prometheus metrics, in the text exposition format.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::status::{Field, Measure, VolumeReport, VolumeState, VolumeStatus};

/// The metrics of `volumes`, ready to be scraped or put into a file for a textfile collector. Each metric has the label
/// `volume`. Names carry their unit; counters end in `_total`. Of a volume without figures there is its state.
pub fn prometheus(volumes: &[VolumeReport]) -> String {
    let figures = volumes.iter().filter_map(|volume| match volume {
        VolumeReport::Figures(figures) => Some(as_object(figures)),
        VolumeReport::Unserved(_) => None,
    });
    let rows: Vec<Map<String, Value>> = figures.collect();
    let mut text = String::new();
    info(&rows, &mut text);
    state(volumes, &mut text);
    for field in VolumeStatus::FIELDS {
        match field.measure {
            Measure::Gauge(metric) => numbers(field, metric, "gauge", &rows, &mut text),
            Measure::Counter(metric) => numbers(field, metric, "counter", &rows, &mut text),
            Measure::Counters(metric, key) => counters(field, (metric, key), &rows, &mut text),
            Measure::Histogram(metric, sum) => histogram(field, (metric, sum), &rows, &mut text),
            Measure::Label | Measure::State | Measure::Detail => {}
        }
    }
    text
}

fn as_object(status: &VolumeStatus) -> Map<String, Value> {
    match serde_json::to_value(status) {
        Ok(Value::Object(object)) => object,
        // A struct of numbers, strings and lists cannot be anything else; a scrape without figures says so by itself.
        _ => Map::new(),
    }
}

fn head(metric: &str, kind: &str, help: &str, text: &mut String) {
    let _ = writeln!(text, "# HELP {metric} {}", help.replace('\\', "\\\\").replace('\n', "\\n"));
    let _ = writeln!(text, "# TYPE {metric} {kind}");
}

fn numbers(field: &Field, metric: &str, kind: &str, rows: &[Map<String, Value>], text: &mut String) {
    head(metric, kind, field.help, text);
    for row in rows {
        if let Some(Value::Number(value)) = row.get(field.name) {
            let _ = writeln!(text, "{metric}{{volume=\"{}\"}} {value}", label(row, "name"));
        }
    }
}

fn counters(field: &Field, (metric, key): (&str, &str), rows: &[Map<String, Value>], text: &mut String) {
    head(metric, "counter", field.help, text);
    for row in rows {
        for (value, count) in row.get(field.name).and_then(Value::as_object).into_iter().flatten() {
            let (volume, value) = (label(row, "name"), escape(value));
            let _ = writeln!(text, "{metric}{{volume=\"{volume}\",{key}=\"{value}\"}} {count}");
        }
    }
}

/// Buckets from the lowest bound to `+Inf`, which counts all.
fn histogram(field: &Field, (metric, sum): (&str, &str), rows: &[Map<String, Value>], text: &mut String) {
    head(metric, "histogram", field.help, text);
    for row in rows {
        let volume = label(row, "name");
        let bound = |le: &str| le.parse().unwrap_or(f64::INFINITY);
        let looks = row.get(field.name).and_then(Value::as_object).into_iter().flatten();
        let mut buckets: Vec<(&String, u64)> =
            looks.filter_map(|(le, count)| Some((le, count.as_u64()?))).collect();
        buckets.sort_by(|(a, _), (b, _)| bound(a).total_cmp(&bound(b)));
        for (le, count) in &buckets {
            let _ = writeln!(text, "{metric}_bucket{{volume=\"{volume}\",le=\"{}\"}} {count}", escape(le));
        }
        let sum = row.get(sum).and_then(Value::as_f64).unwrap_or_default();
        let _ = writeln!(text, "{metric}_sum{{volume=\"{volume}\"}} {sum}");
        let all = buckets.last().map_or(0, |(_, count)| *count);
        let _ = writeln!(text, "{metric}_count{{volume=\"{volume}\"}} {all}");
    }
}

fn info(rows: &[Map<String, Value>], text: &mut String) {
    head("forebay_info", "gauge", "Choices of the volume, as labels; always 1.", text);
    for row in rows {
        let _ = write!(text, "forebay_info{{volume=\"{}\"", label(row, "name"));
        for field in VolumeStatus::FIELDS {
            if field.measure == Measure::Label && field.name != "name" {
                let _ = write!(text, ",{}=\"{}\"", field.name, label(row, field.name));
            }
        }
        let _ = writeln!(text, "}} 1");
    }
}

fn state(volumes: &[VolumeReport], text: &mut String) {
    head("forebay_state", "gauge", "1 for the state that the volume is in, 0 for the others.", text);
    for volume in volumes {
        for state in VolumeState::ALL {
            let is = u8::from(volume.state() == state);
            let name = escape(volume.name());
            let _ = writeln!(text, "forebay_state{{volume=\"{name}\",state=\"{}\"}} {is}", state.as_str());
        }
    }
}

fn label(row: &Map<String, Value>, key: &str) -> String {
    escape(row.get(key).and_then(Value::as_str).unwrap_or_default())
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Unserved;
    use std::collections::HashSet;

    #[test]
    fn every_number_is_exported_under_a_name_with_its_kind() {
        let status = VolumeStatus::sample("a \"quoted\" name");
        let text = prometheus(&[status.into()]);
        let mut names = HashSet::new();
        for (i, field) in VolumeStatus::FIELDS.iter().enumerate() {
            let (metric, kind) = match field.measure {
                Measure::Gauge(metric) => (metric, "gauge"),
                Measure::Counter(metric) => (metric, "counter"),
                _ => continue,
            };
            assert!(names.insert(metric), "{metric} twice");
            assert_eq!(metric.ends_with("_total"), kind == "counter", "{metric}");
            assert!(text.contains(&format!("# TYPE {metric} {kind}\n")), "{metric}");
            let value = 1000 + i;
            let plain = format!("{metric}{{volume=\"a \\\"quoted\\\" name\"}} {value}");
            assert!(text.lines().any(|l| l == plain || l == format!("{plain}.0")), "{plain} not in\n{text}");
        }
        assert!(text.contains("reason=\"direct\"} 10"), "{text}");
        assert!(text.contains("state=\"healthy\"} 1"));
        assert!(text.contains("state=\"degraded\"} 0"));
        let info = text.lines().find(|line| line.starts_with("forebay_info{")).unwrap();
        assert!(info.contains("write_policy=\"a write_policy\""), "{info}");
        assert!(!info.contains("size_bytes") && !info.contains(",name="), "a figure is no label: {info}");
    }

    #[test]
    fn a_volume_without_figures_has_a_state() {
        let gone = Unserved { name: "db".into(), state: VolumeState::Gone, reason: "killed".into() };
        let text = prometheus(&[VolumeReport::Unserved(gone), VolumeStatus::sample("log").into()]);
        assert!(text.contains("forebay_state{volume=\"db\",state=\"gone\"} 1\n"), "{text}");
        assert!(text.contains("forebay_state{volume=\"db\",state=\"healthy\"} 0\n"), "{text}");
        assert!(!text.contains("forebay_size_bytes{volume=\"db\"}"), "{text}");
    }

    /// What `promtool check metrics` asks of names, types and labels, and a parser of histograms.
    #[test]
    fn keeps_the_rules_that_promtool_checks() {
        let text = prometheus(&[VolumeStatus::sample("db").into(), VolumeStatus::sample("log").into()]);
        let (mut metric, mut kind, mut helped) = ("", "", "");
        let mut seen = HashSet::new();
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                (helped, _) = help.split_once(' ').unwrap();
                continue;
            }
            if let Some(said) = line.strip_prefix("# TYPE ") {
                (metric, kind) = said.split_once(' ').unwrap();
                assert!(seen.insert(metric) && metric == helped, "{line}");
                assert_eq!(metric.ends_with("_total"), kind == "counter", "{line}");
                let typed = ["_counter", "_gauge", "_histogram", "_summary", "_bucket", "_sum", "_count"];
                assert!(typed.iter().all(|suffix| !metric.contains(suffix)), "{line}");
                assert!(
                    ["_ms", "_milliseconds", "_kb", "_mib"].iter().all(|unit| !metric.contains(unit)),
                    "{line}"
                );
                continue;
            }
            let (name, labels) = line.split_once('{').unwrap();
            let suffix = name.strip_prefix(metric).unwrap_or_else(|| panic!("{line} stands below {metric}"));
            match kind {
                "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}"),
                _ => assert!(suffix.is_empty(), "{line}"),
            }
            assert_eq!(labels.contains("le=\""), suffix == "_bucket", "{line}");
        }
        let of_db: Vec<_> =
            text.lines().filter(|l| l.starts_with("forebay_staleness_d") && l.contains("\"db\"")).collect();
        let bucket = |le: &str, n: u64| {
            format!("forebay_staleness_distribution_seconds_bucket{{volume=\"db\",le=\"{le}\"}} {n}")
        };
        let wanted = [
            bucket("0.5", 7),
            bucket("2", 7),
            bucket("10", 8),
            bucket("+Inf", 9),
            "forebay_staleness_distribution_seconds_sum{volume=\"db\"} 12.5".to_owned(),
            "forebay_staleness_distribution_seconds_count{volume=\"db\"} 9".to_owned(),
        ];
        assert_eq!(of_db, wanted);
    }

    #[test]
    fn no_volumes_is_a_valid_scrape() {
        assert!(prometheus(&[]).lines().all(|l| l.starts_with('#')));
    }
}
