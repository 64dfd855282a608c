//! Lines over a number, as SVG: what the papers show as figures.

use std::fmt::Write;

/// A drawing of some lines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// Name and unit of the number to the right.
    pub x_label: String,
    /// Name and unit of the number upwards.
    pub y_label: String,
    /// Each line's name and points, from left to right.
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
    /// A place to be pointed at, and what to say of it.
    pub mark: Option<(f64, String)>,
    /// To the right, equal ways are equal factors, as suits sizes.
    pub log_x: bool,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 360.0;
/// Room for names and numbers: left, right, above, below.
const MARGINS: (f64, f64, f64, f64) = (70.0, 170.0, 40.0, 50.0);
/// Colours that people with red-green blindness tell apart (Okabe and Ito), and grey.
const COLOURS: [&str; 9] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442", "#999999"];
/// Numbers at an axis, at most about.
const TICKS: f64 = 6.0;

/// From a number to a place.
struct Axis {
    least: f64,
    most: f64,
    from: f64,
    to: f64,
    /// The numbers that are there, if equal ways are equal factors.
    factors: Option<Vec<f64>>,
}

impl Axis {
    fn of(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (least, most) = values
            .filter(|v| v.is_finite())
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(l, m), v| (l.min(v), m.max(v)));
        let (least, most) = if least.is_finite() { (least, most) } else { (0.0, 1.0) };
        let most = if most > least { most } else { least + 1.0 };
        Self { least, most, from, to, factors: None }
    }

    /// The same with equal ways for equal factors, if no number is in the way of that.
    fn of_factors(values: impl Iterator<Item = f64> + Clone, from: f64, to: f64) -> Self {
        let mut there: Vec<f64> = values.clone().filter(|v| v.is_finite()).collect();
        there.sort_by(f64::total_cmp);
        there.dedup();
        let has_factors = there.len() > 1 && there.first().is_some_and(|least| *least > 0.0);
        Self { factors: has_factors.then_some(there), ..Self::of(values, from, to) }
    }

    fn place(&self, value: f64) -> f64 {
        let part = match self.factors {
            Some(_) => (value / self.least).ln() / (self.most / self.least).ln(),
            None => (value - self.least) / (self.most - self.least),
        };
        self.from + part * (self.to - self.from)
    }

    /// Round numbers within.
    fn ticks(&self) -> Vec<f64> {
        if let Some(there) = &self.factors {
            return there.clone();
        }
        let rough = (self.most - self.least) / TICKS;
        let power = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|s| *s >= rough).unwrap_or(rough);
        let first = (self.least / step).ceil();
        (0..).map(|n| (first + f64::from(n)) * step).take_while(|t| *t <= self.most + step * 1e-9).collect()
    }
}

/// A number as people write it: few digits, K, M and G (powers of 1000).
pub(crate) fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e3 => (value / 1e3, "K"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}{unit}")
}

/// Text that may stand in HTML and SVG.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Plot {
    /// The drawing, as an SVG element that may stand in a page or in a file of its own.
    pub fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|(_, points)| points.iter().copied());
        let (left, right) = (MARGINS.0, WIDTH - MARGINS.1);
        let x = match self.log_x {
            true => Axis::of_factors(points().map(|p| p.0), left, right),
            false => Axis::of(points().map(|p| p.0), left, right),
        };
        let mut places: Vec<f64> = points().map(|p| p.0).collect();
        places.dedup();
        // Lines that have one place between them are no lines.
        let bars = places.len() == 1;
        // The way up begins at zero, so that lengths can be compared.
        let y = Axis::of(points().map(|p| p.1).chain([0.0]), HEIGHT - MARGINS.3, MARGINS.2);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\
             <text x=\"{}\" y=\"22\" font-size=\"15\">{}</text>",
            x.from,
            escaped(&self.title)
        );
        self.axes(&mut svg, &x, &y, bars);
        for (n, (name, points)) in self.lines.iter().enumerate() {
            let colour = COLOURS[n % COLOURS.len()];
            if bars {
                let room = (x.to - x.from) / self.lines.len() as f64;
                let (at, width) = (x.from + room * (n as f64 + 0.2), room * 0.6);
                for (_, value) in points.iter().filter(|p| p.1.is_finite()) {
                    let top = y.place(*value);
                    let _ = write!(
                        svg,
                        "<rect x=\"{at:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>\
                         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                        y.from - top,
                        at + width / 2.0,
                        top - 4.0,
                        short(*value)
                    );
                }
            }
            let path: Vec<String> = points
                .iter()
                .filter(|p| !bars && p.0.is_finite() && p.1.is_finite())
                .map(|p| format!("{:.1},{:.1}", x.place(p.0), y.place(p.1)))
                .collect();
            if path.len() > 1 {
                let _ = write!(
                    svg,
                    "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
                    path.join(" ")
                );
            }
            for at in &path {
                if let Some((cx, cy)) = at.split_once(',') {
                    let _ = write!(svg, "<circle cx=\"{cx}\" cy=\"{cy}\" r=\"3\" fill=\"{colour}\"/>");
                }
            }
            let at = MARGINS.2 + 18.0 * n as f64;
            let _ = write!(
                svg,
                "<text x=\"{}\" y=\"{}\" fill=\"{colour}\">{}</text>",
                x.to + 14.0,
                at + 4.0,
                escaped(name)
            );
        }
        if let Some((at, what)) = self.mark.as_ref().filter(|_| !bars) {
            let place = x.place(*at);
            let _ = write!(
                svg,
                "<line x1=\"{place:.1}\" x2=\"{place:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"#555\" stroke-dasharray=\"5 4\"/>\
                 <text x=\"{place:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                y.to,
                y.from,
                y.to - 4.0,
                escaped(what)
            );
        }
        svg.push_str("</svg>");
        svg
    }

    fn axes(&self, svg: &mut String, x: &Axis, y: &Axis, bars: bool) {
        for tick in x.ticks().into_iter().filter(|_| !bars) {
            let at = x.place(tick);
            let _ = write!(
                svg,
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{0}\" y2=\"{1}\" stroke=\"#eee\"/>\
                 <text x=\"{at:.1}\" y=\"{2}\" text-anchor=\"middle\">{3}</text>",
                y.from,
                y.to,
                y.from + 16.0,
                short(tick)
            );
        }
        for tick in y.ticks() {
            let at = y.place(tick);
            let _ = write!(
                svg,
                "<line x1=\"{0}\" x2=\"{1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#eee\"/>\
                 <text x=\"{2}\" y=\"{3:.1}\" text-anchor=\"end\">{4}</text>",
                x.from,
                x.to,
                x.from - 6.0,
                at + 4.0,
                short(tick)
            );
        }
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(16 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            (x.from + x.to) / 2.0,
            HEIGHT - 12.0,
            escaped(&match self.lines.iter().flat_map(|(_, points)| points).next() {
                Some((place, _)) if bars => format!("{}: {}", self.x_label, short(*place)),
                _ => self.x_label.clone(),
            }),
            (y.from + y.to) / 2.0,
            escaped(&self.y_label)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_stand_where_their_numbers_say() {
        let plot = Plot {
            title: "a < b".into(),
            lines: vec![("one".into(), vec![(0.0, 0.0), (10.0, 5.0)]), ("two".into(), vec![(5.0, 10.0)])],
            mark: Some((5.0, "here".into())),
            ..Plot::default()
        };
        let svg = plot.svg();
        assert!(svg.contains("points=\"70.0,310.0 550.0,175.0\""), "{svg}");
        assert!(svg.contains("<circle cx=\"310.0\" cy=\"40.0\"") && svg.contains("a &lt; b"));
        assert!(svg.contains("<line x1=\"310.0\" x2=\"310.0\" y1=\"40\" y2=\"310\""), "{svg}");
    }

    #[test]
    fn one_place_is_shown_as_bars_with_their_values() {
        let plot = Plot {
            x_label: "cache, MiB".into(),
            lines: vec![("all".into(), vec![(16.0, 5.0)]), ("none".into(), vec![(16.0, 10.0)])],
            ..Plot::default()
        };
        let svg = plot.svg();
        assert!(!svg.contains("polyline") && svg.contains("cache, MiB: 16<"), "{svg}");
        assert!(
            svg.contains("y=\"175.0\" width=\"144.0\" height=\"135.0\"") && svg.contains(">10<"),
            "{svg}"
        );
    }

    #[test]
    fn sizes_stand_as_far_apart_as_their_factors() {
        let line = vec![(4.0, 1.0), (16.0, 1.0), (64.0, 1.0)];
        let plot = Plot { lines: vec![("all".into(), line)], log_x: true, ..Plot::default() };
        let svg = plot.svg();
        assert!(svg.contains("points=\"70.0,40.0 310.0,40.0 550.0,40.0\""), "{svg}");
        for size in ["4", "16", "64"] {
            assert!(svg.contains(&format!("text-anchor=\"middle\">{size}</text>")), "{svg}");
        }
    }

    #[test]
    fn ticks_are_round_and_few_whatever_the_numbers() {
        for (least, most) in [(0.0, 1.0), (-3.0, 7.0), (0.0, 123_456_789.0), (5.0, 5.0), (1e-9, 2e-9)] {
            let ticks = Axis::of([least, most].into_iter(), 0.0, 1.0).ticks();
            assert!((2..=8).contains(&ticks.len()), "{least} to {most}: {ticks:?}");
        }
        assert_eq!(Axis::of([0.0, 10.0].into_iter(), 0.0, 1.0).ticks(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!((short(1_500.0), short(0.25), short(-2e6)), ("1.5K".into(), "0.25".into(), "-2M".into()));
        assert!(Axis::of(std::iter::empty(), 0.0, 1.0).ticks().len() > 1, "without any point");
    }
}
