//! Coverage by lines of `region` and `store`, from the profiles of programs that were built with
//! `-C instrument-coverage`. `tests/coverage.sh` makes them.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use llvm_profparser::instrumentation_profile::types::InstrumentationProfile;
use llvm_profparser::{CoverageMapping, SourceLocation, parse};

/// What is looked at, from the top of the work tree.
const FOLDERS: [&str; 2] = ["crates/region/src", "crates/store/src"];

/// How often each part of a file was run.
type Hits = BTreeMap<SourceLocation, usize>;
/// The lines of a file that have code, and whether they were run.
type Lines = BTreeMap<usize, bool>;

/// Files by their path from the top of the work tree.
type Files<T> = BTreeMap<String, T>;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut names, mut runs, mut together, mut prints_missed) =
        (vec![], vec![], Files::new(), false);
    for arg in std::env::args().skip(1) {
        if arg == "--missed" {
            prints_missed = true;
            continue;
        }
        let (name, paths) =
            arg.split_once('=').ok_or("usage: NAME=PROGRAM,PROFILE[,PROFILE]...")?;
        let hits = read(&paths.split(',').map(PathBuf::from).collect::<Vec<_>>())?;
        for (file, hits) in &hits {
            let sum: &mut Hits = together.entry(file.clone()).or_default();
            hits.iter()
                .for_each(|(place, count)| add(sum.entry(place.clone()).or_default(), *count));
        }
        names.push(name.to_owned());
        runs.push(lines_of(hits)?);
    }
    names.push("together".to_owned());
    let together = lines_of(together)?;
    runs.push(together.clone());
    print_table(&names, &runs);
    if prints_missed { print_missed(&together) } else { Ok(()) }
}

/// The hits of one program.
fn read(paths: &[PathBuf]) -> Result<Files<Hits>, Box<dyn Error>> {
    let [program, profiles @ ..] = paths else { return Err("a program and its profiles".into()) };
    let mut sum = InstrumentationProfile::default();
    for path in profiles {
        // Merged even if there is only one: it has a function as often as it was compiled, and
        // otherwise the last of these would count alone.
        sum.merge(&parse(path)?);
    }
    let objects = [program.clone()];
    let report = CoverageMapping::new(&objects, &sum, false)?
        .generate_subreport(|paths| paths.iter().any(|path| in_tree(path).is_some()))?;
    let files = report.files.into_iter();
    Ok(files.filter_map(|(path, found)| Some((in_tree(&path)?, found.hits))).collect())
}

/// The path from the top of the work tree, if the file is looked at. Its tests are not compiled
/// into another crate's program.
fn in_tree(path: &Path) -> Option<String> {
    let path = path.to_string_lossy();
    let start = FOLDERS.iter().find_map(|folder| path.find(folder))?;
    Some(path[start..].to_owned())
}

fn add(sum: &mut usize, count: usize) {
    *sum = sum.saturating_add(count);
}

fn lines_of(files: Files<Hits>) -> Result<Files<Lines>, Box<dyn Error>> {
    files
        .into_iter()
        .map(|(file, hits)| Ok((file.clone(), lines(&source(&file)?, &hits))))
        .collect()
}

fn source(file: &str) -> Result<String, Box<dyn Error>> {
    fs::read_to_string(file).map_err(|error| format!("{file}: {error}").into())
}

/// A line was run if a part that begins in it was, or the innermost part around its beginning.
fn lines(source: &str, hits: &Hits) -> Lines {
    let mut lines = Lines::new();
    for (number, text) in (1..).zip(source.lines()) {
        let is_comment = text.trim_start().starts_with("//");
        if is_comment || !text.contains(|letter: char| letter.is_alphanumeric()) {
            continue;
        }
        let begin_here = hits.iter().filter(|(place, _)| place.line_start == number);
        let around = hits
            .iter()
            .filter(|(place, _)| place.line_start < number && number <= place.line_end)
            .max_by_key(|(place, _)| (place.line_start, place.column_start));
        if let Some(count) = begin_here.chain(around).map(|(_, count)| *count).max() {
            lines.insert(number, count > 0);
        }
    }
    lines
}

fn print_table(names: &[String], runs: &[Files<Lines>]) {
    let files: BTreeSet<_> = runs.iter().flat_map(BTreeMap::keys).map(String::as_str).collect();
    // Folders first, each with all that is below it.
    let above = |file: &&str| Path::new(*file).parent().and_then(Path::to_str).map(str::to_owned);
    let mut rows: BTreeSet<_> = files.iter().filter_map(above).collect();
    rows.extend(FOLDERS.map(str::to_owned));
    let of_files = files.iter().map(|file| (*file).to_owned());
    println!("{:50} {}", "lines reached by", names.join("      "));
    for row in rows.into_iter().chain(of_files) {
        let parts = runs.iter().map(|run| {
            let is_below = |(file, _): &(&String, &Lines)| {
                file.strip_prefix(&row).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            let lines = run.iter().filter(is_below).flat_map(|(_, lines)| lines.values());
            let (reached, all) = lines.fold((0_u32, 0_u32), |(reached, all), is_reached| {
                (reached + u32::from(*is_reached), all + 1)
            });
            let percent = 100.0 * f64::from(reached) / f64::from(all.max(1));
            format!("{reached:5}/{all:<5}{percent:5.1} %")
        });
        println!("{row:50}{}", parts.collect::<Vec<_>>().join(" "));
    }
}

fn print_missed(files: &Files<Lines>) -> Result<(), Box<dyn Error>> {
    for (file, lines) in files {
        let source = source(file)?;
        for (number, text) in (1..).zip(source.lines()) {
            if lines.get(&number) == Some(&false) {
                println!("{file}:{number}: {}", text.trim());
            }
        }
    }
    Ok(())
}
