//! The ratios as a picture: a bar for each case, ours in units of raft-engine's.

use crate::engines::Contender;
use crate::log::Result;
use crate::record::{Metric, Records};
use crate::table::metrics;
use peers::figures::ratio;
use plotters::prelude::*;
use std::path::Path;

const WIDTH: u32 = 1100;
const ROW: u32 = 22;
const LABELS: i32 = 560;
const TOP: i32 = 60;
/// The scale ends at this ratio and its inverse; bars beyond it are cut off there.
const RATIO_MAX: f64 = 32.0;
/// Half the width of the scale.
const HALF: i32 = 220;

struct Bar {
    label: String,
    ratio: f64,
    /// Whether a ratio above one is what one wants.
    high_is_good: bool,
}

/// Draws what was measured of us and raft-engine.
///
/// # Errors
///
/// If the file cannot be written.
pub fn plot(records: &Records, file: &Path) -> Result<()> {
    let bars = bars(records);
    let height = TOP as u32 + ROW * (bars.len() as u32 + 1);
    let area = SVGBackend::new(file, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let font = ("sans-serif", 13).into_font();
    let title =
        "raftlog in units of raft-engine, medians; green is better, the scale is logarithmic";
    area.draw(&Text::new(title, (10, 12), ("sans-serif", 16).into_font()))?;
    let middle = LABELS + HALF;
    for ratio in [1.0 / 16.0, 0.25, 1.0, 4.0, 16.0_f64] {
        let x = middle + along(ratio);
        area.draw(&PathElement::new([(x, TOP - 6), (x, height as i32 - 10)], BLACK.mix(0.2)))?;
        area.draw(&Text::new(format!("{ratio}x"), (x - 10, TOP - 22), font.clone()))?;
    }
    for (bar, y) in bars.iter().zip((TOP..).step_by(ROW as usize)) {
        let is_better = (bar.ratio >= 1.0) == bar.high_is_good;
        let color = if is_better { RGBColor(46, 125, 50) } else { RGBColor(198, 40, 40) };
        let end = middle + along(bar.ratio);
        let corners = [(middle.min(end), y), (middle.max(end), y + ROW as i32 - 8)];
        area.draw(&Rectangle::new(corners, color.filled()))?;
        area.draw(&Text::new(bar.label.clone(), (10, y), font.clone()))?;
        let text = format!("{:.2}x", bar.ratio);
        area.draw(&Text::new(text, (LABELS + 2 * HALF + 10, y), font.clone()))?;
    }
    area.present()?;
    Ok(())
}

/// How far right of the middle a ratio lies.
fn along(ratio: f64) -> i32 {
    let ratio = ratio.clamp(1.0 / RATIO_MAX, RATIO_MAX);
    (ratio.ln() / RATIO_MAX.ln() * f64::from(HALF)) as i32
}

fn bars(records: &Records) -> Vec<Bar> {
    let mut bars = Vec::new();
    for (workload, case) in records.cases() {
        for metric in metrics(records, workload, case) {
            let median = |engine| records.median(workload, case, engine, metric);
            if let Some(ratio) = ratio(median(Contender::Raftlog), median(Contender::RaftEngine)) {
                let label = format!("{workload}: {case}: {}", metric.name());
                bars.push(Bar { label, ratio, high_is_good: metric == Metric::EntriesPerSecond });
            }
        }
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_is_even_and_bounded() {
        assert_eq!(along(1.0), 0);
        assert_eq!(along(4.0), -along(0.25));
        assert_eq!((along(1e9), along(0.0)), (HALF, -HALF));
    }

    #[test]
    fn a_picture_has_a_bar_for_each_case_that_both_have() {
        let mut records = Records::default();
        for (case, engine) in [
            ("both", Contender::Raftlog),
            ("both", Contender::RaftEngine),
            ("one", Contender::Raftlog),
        ] {
            records.add("fetch", case, engine, Metric::P50Us, 2.0);
        }
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("plot.svg");
        plot(&records, &file).expect("it is drawn");
        let text = std::fs::read_to_string(file).expect("it is there");
        assert!(text.contains("fetch: both: p50 us") && text.contains("1.00x"));
        assert!(!text.contains("fetch: one"));
    }
}
