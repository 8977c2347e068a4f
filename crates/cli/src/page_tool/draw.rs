//! Draws the map of a page file: a field of cells, each of several pages, in the colour of the
//! owner that has most of them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use flotilla_pagestore::tools::{SpaceMap, UnitOwner};

/// Cells of the field on a terminal: columns and rows.
const TEXT_CELLS: (u64, u64) = (64, 24);

/// Cells of the field in an SVG.
const SVG_CELLS: (u64, u64) = (128, 64);

/// Pixels of a cell in an SVG.
const CELL: u64 = 7;

/// Letters of the trees; those behind them share the last.
const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// The field: the owner of each cell, and how many units a cell has.
fn cells(map: &SpaceMap, (columns, rows): (u64, u64)) -> (Vec<UnitOwner>, u64) {
    let units = map.runs.last().map_or(0, |run| run.units.end);
    let per_cell = units.div_ceil(columns * rows).max(1);
    let mut runs = map.runs.iter().peekable();
    let field = (0..units.div_ceil(per_cell)).map(|i| {
        let cell = i * per_cell..((i + 1) * per_cell).min(units);
        let mut shares: Vec<(UnitOwner, u64)> = Vec::new();
        while let Some(run) = runs.peek() {
            let share = run.units.end.min(cell.end).saturating_sub(run.units.start.max(cell.start));
            match shares.iter_mut().find(|(owner, _)| *owner == run.owner) {
                Some((_, sum)) => *sum += share,
                None => shares.push((run.owner, share)),
            }
            if run.units.end > cell.end {
                break;
            }
            runs.next();
        }
        let most = shares.into_iter().max_by_key(|(_, share)| *share);
        most.map_or(UnitOwner::Free, |(owner, _)| owner)
    });
    (field.collect(), per_cell)
}

/// The letter of an owner.
fn letter(owner: UnitOwner) -> char {
    match owner {
        UnitOwner::Meta => 'm',
        UnitOwner::Bitmaps => 'b',
        UnitOwner::Directory => 'd',
        UnitOwner::Redo => 'r',
        UnitOwner::Catalogue => 'c',
        UnitOwner::DeferredFree => 't',
        UnitOwner::Lost => '!',
        UnitOwner::Free => '.',
        UnitOwner::Growth => ' ',
        UnitOwner::Tree(i) => char::from(LETTERS[i.min(LETTERS.len() - 1)]),
        _ => '?',
    }
}

fn colour(owner: UnitOwner) -> String {
    let fixed = match owner {
        UnitOwner::Meta | UnitOwner::Bitmaps | UnitOwner::Directory => "#444444",
        UnitOwner::Redo => "#8a5a00",
        UnitOwner::Catalogue => "#000000",
        UnitOwner::DeferredFree => "#b0a090",
        UnitOwner::Lost => "#e00000",
        UnitOwner::Free => "#e8efe8",
        UnitOwner::Growth => "#ffffff",
        // Steps of the golden angle: neighbours in number are far from each other in colour.
        UnitOwner::Tree(i) => return format!("hsl({},65%,50%)", (210 + i * 137) % 360),
        _ => "#ff00ff",
    };
    fixed.to_owned()
}

/// The name of an owner.
pub(super) fn name(map: &SpaceMap, owner: UnitOwner) -> String {
    let name = match owner {
        UnitOwner::Meta => "meta pages",
        UnitOwner::Bitmaps => "bitmaps",
        UnitOwner::Directory => "directory",
        UnitOwner::Redo => "redo area",
        UnitOwner::Catalogue => "catalogue",
        UnitOwner::DeferredFree => "trash",
        UnitOwner::Lost => "lost",
        UnitOwner::Free => "free",
        UnitOwner::Growth => "room to grow",
        UnitOwner::Tree(i) => return map.trees.get(i).cloned().unwrap_or_default(),
        _ => "other",
    };
    name.to_owned()
}

/// Each owner with its units and runs: first what is not a tree, then the trees.
pub(super) fn owners(map: &SpaceMap) -> Vec<(UnitOwner, char, u64, u64)> {
    let mut sums: BTreeMap<(usize, char), (UnitOwner, u64, u64)> = BTreeMap::new();
    for run in &map.runs {
        let order = if let UnitOwner::Tree(i) = run.owner { i + 1 } else { 0 };
        let sum = sums.entry((order, letter(run.owner))).or_insert((run.owner, 0, 0));
        sum.1 += run.units.end - run.units.start;
        sum.2 += 1;
    }
    sums.into_iter()
        .map(|((_, letter), (owner, units, runs))| (owner, letter, units, runs))
        .collect()
}

/// The picture for a terminal.
pub(super) fn text(map: &SpaceMap, out: &mut impl Write) -> io::Result<()> {
    let (cells, per_cell) = cells(map, TEXT_CELLS);
    for (row, line) in cells.chunks(TEXT_CELLS.0 as usize).enumerate() {
        let letters: String = line.iter().map(|&owner| letter(owner)).collect();
        let unit = row as u64 * TEXT_CELLS.0 * per_cell;
        writeln!(out, "{unit:>10} {}", letters.trim_end())?;
    }
    writeln!(out, "{:>10} a letter is {per_cell} pages, and says who has most of them\n", "")
}

/// The picture as SVG.
pub(super) fn svg(map: &SpaceMap, out: &mut impl Write) -> io::Result<()> {
    let (cells, per_cell) = cells(map, SVG_CELLS);
    let owners = owners(map);
    let rows = (cells.len() as u64).div_ceil(SVG_CELLS.0);
    let (width, field) = (SVG_CELLS.0 * CELL, rows * CELL);
    let height = field + 20 * (owners.len() as u64 + 2);
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">"
    )?;
    writeln!(out, "<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>")?;
    for (row, line) in cells.chunks(SVG_CELLS.0 as usize).enumerate() {
        let mut column = 0;
        for run in line.chunk_by(|one, other| one == other) {
            let (x, y) = (column * CELL, row as u64 * CELL);
            let wide = run.len() as u64 * CELL;
            let fill = colour(run[0]);
            writeln!(
                out,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{wide}\" height=\"{CELL}\" fill=\"{fill}\"/>"
            )?;
            column += run.len() as u64;
        }
    }
    let mut y = field + 20;
    writeln!(out, "<text x=\"4\" y=\"{y}\">a cell is {per_cell} pages of 4 KiB</text>")?;
    for (owner, _, units, runs) in owners {
        y += 20;
        let (fill, name) = (colour(owner), escaped(&name(map, owner)));
        writeln!(
            out,
            "<rect x=\"4\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{fill}\" stroke=\"#888888\"/>\
             <text x=\"24\" y=\"{y}\">{name}: {units} pages in {runs} runs</text>",
            y - 11
        )?;
    }
    writeln!(out, "</svg>")
}

/// Text as XML has it.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            control if control.is_control() => safe.push('\u{fffd}'),
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_no_harm_in_a_picture() {
        assert_eq!(escaped("a<b>&\n\"c\""), "a&lt;b&gt;&amp;\u{fffd}\"c\"");
    }
}
