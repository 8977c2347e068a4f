//! The goals as a picture: a bar for each, how far it is met or missed.

use crate::goals::Goal;
use crate::record::Records;
use peers::Result;
use peers::figures::{Bound, figure};
use plotters::prelude::*;
use std::path::Path;

const WIDTH: u32 = 1200;
const ROW: u32 = 22;
const LABELS: i32 = 640;
const TOP: i32 = 60;
/// The scale ends here and at the inverse; bars beyond it are cut off there.
const SCORE_MAX: f64 = 32.0;
/// Half the width of the scale.
const HALF: i32 = 220;

/// Draws all goals of which something was measured.
///
/// # Errors
///
/// If the file cannot be written.
pub fn plot(goals: &[Goal], records: &Records, file: &Path) -> Result<()> {
    let bars: Vec<_> = goals.iter().filter_map(|goal| Some((goal, goal.value(records)?))).collect();
    let height = TOP as u32 + ROW * (bars.len() as u32 + 1);
    let area = SVGBackend::new(file, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let font = ("sans-serif", 13).into_font();
    let title =
        "pagestore in units of what is asked; right and green is better, the scale is logarithmic";
    area.draw(&Text::new(title, (10, 12), ("sans-serif", 16).into_font()))?;
    let middle = LABELS + HALF;
    for score in [1.0 / 16.0, 0.25, 1.0, 4.0, 16.0_f64] {
        let x = middle + along(score);
        area.draw(&PathElement::new([(x, TOP - 6), (x, height as i32 - 10)], BLACK.mix(0.2)))?;
        area.draw(&Text::new(format!("{score}x"), (x - 10, TOP - 22), font.clone()))?;
    }
    for ((goal, value), y) in bars.into_iter().zip((TOP..).step_by(ROW as usize)) {
        let score = score(goal.bound, value);
        let is_met = goal.bound.is_met(value);
        let color = if is_met { RGBColor(46, 125, 50) } else { RGBColor(198, 40, 40) };
        let end = middle + along(score);
        let corners = [(middle.min(end), y), (middle.max(end), y + ROW as i32 - 8)];
        area.draw(&Rectangle::new(corners, color.filled()))?;
        area.draw(&Text::new(label(goal, records), (10, y), font.clone()))?;
        let text = format!("{}, asked {}", figure(value), goal.bound);
        area.draw(&Text::new(text, (LABELS + 2 * HALF + 10, y), font.clone()))?;
    }
    area.present()?;
    Ok(())
}

fn label(goal: &Goal, records: &Records) -> String {
    let other = goal.best(records).map(|(seen, _)| format!(", to {}", seen.engine));
    format!("{}: {}{}", goal.ours.case, goal.ours.figure, other.unwrap_or_default())
}

/// One is what is asked, more is better.
fn score(bound: Bound, value: f64) -> f64 {
    match bound {
        Bound::AtLeast(least) => value / least,
        Bound::AtMost(most) => most / value,
    }
}

/// How far right of the middle a score lies.
fn along(score: f64) -> i32 {
    let score = score.clamp(1.0 / SCORE_MAX, SCORE_MAX);
    (score.ln() / SCORE_MAX.ln() * f64::from(HALF)) as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Sizes;
    use crate::engines::Contender;
    use crate::goals::goals;

    #[test]
    fn a_picture_has_a_bar_for_each_goal_that_was_measured() {
        let mut records = Records::default();
        records.add_one(crate::cases::KILLED, Contender::Pagestore, "open ms", 50.0);
        let dir = tempfile::tempdir().expect("a temporary directory");
        let file = dir.path().join("plot.svg");
        plot(&goals(&Sizes::quick(1)), &records, &file).expect("it is drawn");
        let text = std::fs::read_to_string(file).expect("it is there");
        assert!(text.contains("open after kill -9: open ms") && text.contains("50.0, asked"));
        assert!(!text.contains("random gets"));
        assert_eq!((along(1.0), along(1e9), along(0.0)), (0, HALF, -HALF));
        assert_eq!(score(Bound::AtMost(2.0), 1.0), score(Bound::AtLeast(2.0), 4.0));
    }
}
