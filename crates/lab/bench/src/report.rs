//! What a benchmark reports: named ratios, and a page for people.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::BenchError;
use crate::plot::{Plot, escaped, short};

/// The median: of an even number the mean of the two in the middle, of none 0.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let at = |n: usize| sorted.get(n).copied().unwrap_or_default();
    f64::midpoint(at(sorted.len().saturating_sub(1) / 2), at(sorted.len() / 2))
}

/// Named figures; each name is explained in `docs/reference/benchmarks.md` or the page of its benchmark.
pub type Figures = BTreeMap<String, f64>;

/// A benchmark's result.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Name of the benchmark.
    pub name: &'static str,
    /// One line for a person: what was compared, on what.
    pub title: String,
    /// Where, when and how it was measured: what, and its value.
    pub conditions: Vec<(&'static str, String)>,
    /// Sentences that a reader of the figures needs.
    pub notes: Vec<String>,
    /// What was asked for and could not be measured, and why.
    pub left_out: Vec<String>,
    /// The figures.
    pub figures: Figures,
    /// What the ratios among the figures are made of.
    pub measured: Figures,
    /// Groups of bars: a heading, and labelled values in one unit.
    pub charts: Vec<(String, Vec<(String, f64)>)>,
    /// Lines over a number.
    pub plots: Vec<Plot>,
    /// Tables of text: a heading, the columns' names, the rows.
    pub tables: Vec<Table>,
}

/// A heading, the columns' names, and rows of text.
pub type Table = (String, Vec<String>, Vec<Vec<String>>);

impl Report {
    /// Writes `DIR/NAME.json`, `DIR/NAME.html` and, of each plot, `DIR/NAME.N.svg`.
    ///
    /// # Errors
    /// [`BenchError::System`] if the directory or a file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), BenchError> {
        let write = |ending: &str, text: &str| {
            let path = dir.join(format!("{}.{ending}", self.name));
            fs::write(&path, text).map_err(|e| BenchError::system(format!("write {}", path.display()), e))
        };
        let drawn = self.plots.iter().enumerate();
        let drawings: Vec<(String, String)> =
            drawn.map(|(n, plot)| (format!("{}.svg", n + 1), plot.svg())).collect();
        fs::create_dir_all(dir).map_err(|e| BenchError::system(format!("make {}", dir.display()), e))?;
        let conditions: BTreeMap<_, _> =
            self.conditions.iter().map(|(what, value)| (what.replace(' ', "_"), value)).collect();
        let json = serde_json::json!({
            "benchmark": self.name,
            "title": self.title,
            "conditions": conditions,
            "notes": self.notes,
            "left_out": self.left_out,
            "measured": self.measured,
            "figures": self.figures,
        });
        write("json", &format!("{json:#}\n"))?;
        drawings.iter().try_for_each(|(ending, svg)| write(ending, svg))?;
        write("html", &self.page())
    }

    /// What was not measured, in a sentence, if anything was asked for that was not.
    pub fn not_measured(&self) -> Option<String> {
        (!self.left_out.is_empty()).then(|| format!("not measured: {}", self.left_out.join("; ")))
    }

    /// Tables and figures as text, one row or figure a line.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.title);
        for (what, value) in &self.conditions {
            let _ = writeln!(text, "{what}: {value}");
        }
        for note in self.notes.iter().cloned().chain(self.not_measured()) {
            let _ = writeln!(text, "{note}");
        }
        for (heading, columns, rows) in &self.tables {
            let _ = writeln!(text, "{heading}:");
            let lines = || std::iter::once(columns).chain(rows);
            let width =
                |n: usize| lines().filter_map(|l| l.get(n)).map(|c| c.chars().count()).max().unwrap_or(0);
            let widths: Vec<usize> = (0..columns.len()).map(width).collect();
            for cells in lines() {
                for (cell, width) in cells.iter().zip(&widths) {
                    let _ = write!(text, "  {cell:>width$}");
                }
                text.push('\n');
            }
        }
        // What was measured stands before the ratios that are made of it.
        for (heading, bars) in self.charts.iter().filter(|(_, bars)| !bars.is_empty()) {
            let bars: Vec<String> =
                bars.iter().map(|(label, value)| format!("{label} {}", short(*value))).collect();
            let _ = writeln!(text, "{heading}: {}", bars.join(", "));
        }
        for (name, value) in &self.figures {
            let _ = writeln!(text, "  {name:<44} {value:.3}");
        }
        text
    }

    fn page(&self) -> String {
        let mut page = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{0}</title><style>\
             body{{font:15px/1.5 system-ui,sans-serif;max-width:52em;margin:2em auto;padding:0 1em}}\
             .bar{{display:grid;grid-template-columns:12em 1fr 7em;gap:.6em;align-items:center}}\
             .bar i{{background:#2a6f97;height:1em;display:block;border-radius:2px}}\
             td,th{{padding:.1em 1em .1em 0;text-align:left;vertical-align:top}}</style><h1>{0}</h1><p>{1}</p>",
            self.name,
            escaped(&self.title)
        );
        for note in self.notes.iter().cloned().chain(self.not_measured()) {
            let _ = write!(page, "<p>{}</p>", escaped(&note));
        }
        if !self.conditions.is_empty() {
            page.push_str("<h2>Conditions</h2><table>");
            for (what, value) in &self.conditions {
                let _ = write!(page, "<tr><th>{what}</th><td>{}</td></tr>", escaped(value));
            }
            page.push_str("</table>");
        }
        for (heading, columns, rows) in &self.tables {
            let row = |kind: &str, cells: &[String]| -> String {
                cells.iter().map(|cell| format!("<{kind}>{}</{kind}>", escaped(cell))).collect()
            };
            let _ = write!(page, "<h2>{}</h2><table><tr>{}</tr>", escaped(heading), row("th", columns));
            rows.iter().for_each(|cells| {
                let _ = write!(page, "<tr>{}</tr>", row("td", cells));
            });
            page.push_str("</table>");
        }
        for (heading, bars) in &self.charts {
            let most = bars.iter().map(|(_, v)| *v).fold(f64::MIN_POSITIVE, f64::max);
            let _ = write!(page, "<h2>{heading}</h2>");
            for (label, value) in bars {
                let width = value / most * 100.0;
                let _ = write!(
                    page,
                    "<div class=\"bar\"><span>{label}</span><i style=\"width:{width:.1}%\"></i><span>{value:.2}</span></div>"
                );
            }
        }
        for plot in &self.plots {
            page.push_str(&plot.svg());
        }
        page.push_str("<h2>Figures</h2><table>");
        for (name, value) in &self.figures {
            let _ = write!(page, "<tr><td>{name}</td><td>{value:.3}</td></tr>");
        }
        page.push_str("</table></html>\n");
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_lies_in_the_middle() {
        assert_eq!(
            [&[][..], &[3.0], &[4.0, 1.0], &[9.0, 1.0, 2.0]].map(|v| median(v.iter().copied())),
            [0.0, 3.0, 2.5, 2.0]
        );
    }

    #[test]
    fn a_report_is_json_with_figures_and_a_page() {
        let dir = std::env::temp_dir().join(format!("forebay-report-{}", std::process::id()));
        let report = Report {
            name: "volume",
            title: "a < b".into(),
            figures: Figures::from([("x_ratio".into(), 0.5)]),
            charts: vec![("IOPS".into(), vec![("raw".into(), 2.0), ("nbd".into(), 1.0)])],
            plots: vec![Plot { title: "line".into(), ..Plot::default() }],
            tables: vec![("beside".into(), vec!["ours".into()], vec![vec!["1 > 0".into()]])],
            conditions: vec![("cache size", "16M".into())],
            notes: vec!["x_ratio is half.".into()],
            left_out: vec!["y (gone & away)".into()],
            measured: Figures::from([("x".into(), 7.0)]),
        };
        report.write(&dir).unwrap();
        let json: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(dir.join("volume.json")).unwrap()).unwrap();
        assert_eq!(json["figures"]["x_ratio"], 0.5);
        assert_eq!((&json["measured"]["x"], &json["conditions"]["cache_size"]), (&7.0.into(), &"16M".into()));
        let page = fs::read_to_string(dir.join("volume.html")).unwrap();
        let text = report.text();
        for part in
            ["IOPS: raw 2, nbd 1\n", "cache size: 16M\n", "x_ratio is half.\nnot measured: y (gone & away)\n"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(json["left_out"], serde_json::json!(["y (gone & away)"]));
        let conditions = "<th>cache size</th><td>16M</td>";
        for part in [
            "width:50.0%",
            "a &lt; b",
            "<svg",
            "<td>1 &gt; 0</td>",
            conditions,
            "<p>x_ratio is half.</p>",
            "gone &amp; away",
        ] {
            assert!(page.contains(part), "{part}");
        }
        fs::remove_dir_all(dir).unwrap();
    }
}
