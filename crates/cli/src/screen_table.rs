//! Tables of text: each column as wide as its widest cell, or, if a screen has to hold the rows, no
//! wider than that allows.
//!
//! A table without a screen is never cut: another program may read it. No row ends in spaces, so
//! one long value makes its own row long and no other.

use std::fmt;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// A column is not cut to less than this: numbers and addresses stay whole, and a screen too narrow
/// for all columns wraps the rows itself.
const CUT_COLUMN_WIDTH_MIN: usize = 24;

/// The line below the headings ends here, however long a value is.
const RULE_WIDTH_MAX: usize = 200;

/// Spaces on both sides of a cell.
const PADDING: usize = 2;

/// Rows of cells below headings; `Display` prints them with a line below the headings and nothing
/// else, for a table may have a thousand rows.
#[derive(Clone, Debug)]
pub struct ScreenTable {
    /// The headings first.
    rows: Vec<Vec<TableCell>>,
    width_max: Option<usize>,
}

/// The text of a cell.
#[derive(Clone, Debug)]
pub struct TableCell {
    text: String,
    is_number: bool,
}

/// An empty table with these headings.
#[must_use]
pub fn table(headings: &[&str]) -> ScreenTable {
    ScreenTable { rows: vec![headings.iter().map(TableCell::new).collect()], width_max: None }
}

/// A number's cell.
#[must_use]
pub fn number(number: impl ToString) -> TableCell {
    TableCell { is_number: true, ..TableCell::new(number) }
}

impl TableCell {
    /// A cell of text.
    #[must_use]
    pub fn new(text: impl ToString) -> TableCell {
        TableCell { text: text.to_string(), is_number: false }
    }
}

impl ScreenTable {
    /// Adds a row, with a cell for each heading; cells that are missing are empty.
    pub fn add_row(&mut self, cells: impl IntoIterator<Item = TableCell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Cuts long cells, the longest first, so that a row fits into `width_max` columns of a screen;
    /// a cell that was cut ends in an ellipsis. `None` cuts nothing.
    #[must_use]
    pub fn fitted(self, width_max: Option<usize>) -> ScreenTable {
        ScreenTable { width_max, ..self }
    }

    /// The widths of the columns.
    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut widths = vec![0; columns];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.text.width().max(*width);
            }
        }
        if let Some(width_max) = self.width_max {
            let bound = column_bound(&widths, width_max.saturating_sub(PADDING * columns));
            widths.iter_mut().for_each(|width| *width = bound.min(*width));
        }
        widths
    }
}

/// The greatest bound of each column with which all columns together have at most `width`.
fn column_bound(widths: &[usize], width: usize) -> usize {
    let mut widths = widths.to_vec();
    widths.sort_unstable();
    let (mut rest, mut columns) = (width, widths.len());
    for width in widths {
        // From here on no column is narrower, so they share the rest.
        if width * columns > rest {
            return (rest / columns).max(CUT_COLUMN_WIDTH_MIN);
        }
        (rest, columns) = (rest - width, columns - 1);
    }
    usize::MAX
}

impl fmt::Display for ScreenTable {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let rule: usize = widths.iter().map(|width| width + PADDING).sum();
        let rule = rule.min(self.width_max.unwrap_or(RULE_WIDTH_MAX));
        for (place, row) in self.rows.iter().enumerate() {
            if place > 0 {
                out.write_str("\n")?;
            }
            out.write_str(&line(row, &widths))?;
            if place == 0 {
                write!(out, "\n{}", "─".repeat(rule))?;
            }
        }
        Ok(())
    }
}

fn line(row: &[TableCell], widths: &[usize]) -> String {
    let mut line = String::new();
    // Spaces are written before the next text only.
    let mut owed = 0;
    for (cell, width) in row.iter().zip(widths) {
        let text = cut(&cell.text, *width);
        let spaces = width.saturating_sub(text.width());
        let (before, after) = if cell.is_number { (spaces, 0) } else { (0, spaces) };
        owed += 1 + before;
        if !text.is_empty() {
            line.extend(std::iter::repeat_n(' ', owed));
            line.push_str(&text);
            owed = 0;
        }
        owed += after + 1;
    }
    line
}

/// As much of `text` as `width` columns hold, with an ellipsis if that is not all of it.
pub(crate) fn cut(text: &str, width: usize) -> String {
    // Most texts are short; one that has more bytes than columns is measured.
    if text.len() <= width || text.width() <= width {
        return text.to_owned();
    }
    let mut room = width.saturating_sub(1);
    let fits = |letter: &char| {
        let width = letter.width().unwrap_or(0);
        let fits = width <= room;
        room = room.saturating_sub(width);
        fits
    };
    let mut cut: String = text.chars().take_while(fits).collect();
    cut.push('…');
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(table: &ScreenTable) -> Vec<String> {
        table.to_string().lines().map(str::to_owned).collect()
    }

    #[test]
    fn columns_are_as_wide_as_their_cells_and_numbers_end_at_the_right() {
        let mut small = table(&["id", "name"]);
        small.add_row([number(7), TableCell::new("a")]);
        small.add_row([number(123), TableCell::new("long name")]);
        small.add_row([number(8), TableCell::new("")]);
        let rule = "─".repeat(16);
        assert_eq!(lines(&small), [" id   name", &rule, "   7  a", " 123  long name", "   8"]);
        assert_eq!(lines(&small.clone().fitted(Some(16))), lines(&small), "it fits");
    }

    #[test]
    fn long_cells_are_cut_to_the_screen_and_short_ones_stay() {
        let mut wide = table(&["key", "value"]);
        wide.add_row(["a".to_owned(), "v".repeat(120 << 10)].map(TableCell::new));
        wide.add_row(["k".repeat(100), "日本語".repeat(100)].map(TableCell::new));
        let shown = lines(&wide.clone().fitted(Some(80)));
        assert!(shown.iter().all(|line| line.width() <= 80), "{shown:?}");
        assert!(shown[2].starts_with(" a ") && shown[2].ends_with("vvv…"), "{shown:?}");
        assert_eq!(shown[3].matches('…').count(), 2, "{shown:?}");
        let narrow = lines(&wide.clone().fitted(Some(10)));
        assert_eq!(narrow[2].trim_start_matches(" a").trim().width(), CUT_COLUMN_WIDTH_MIN);
        let whole = lines(&wide);
        assert_eq!(whole[2].len(), (120 << 10) + 103, "nothing is cut without a screen");
        assert!(whole[1].width() == RULE_WIDTH_MAX && whole[0].len() < 200, "{}", whole[0]);
    }

    #[test]
    fn the_widest_columns_are_cut_first() {
        assert_eq!(column_bound(&[10, 500, 30], 140), 100);
        assert_eq!(column_bound(&[500, 500], 140), 70);
        assert_eq!(column_bound(&[10, 20], 30), usize::MAX);
        assert_eq!(column_bound(&[10, 500], 20), CUT_COLUMN_WIDTH_MIN);
        assert_eq!(column_bound(&[], 20), usize::MAX);
    }
}
