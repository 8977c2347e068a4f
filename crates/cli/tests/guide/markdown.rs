//! The guide as a text: its sections, and the command blocks in them.

use std::fs;
use std::path::Path;

/// The guide, from `docs/operations.md`.
pub(crate) struct Guide {
    pub(crate) sections: Vec<Section>,
}

/// A heading and the text below it, up to the next heading of any level.
pub(crate) struct Section {
    /// Without `#`.
    pub(crate) heading: String,
    pub(crate) text: String,
    pub(crate) blocks: Vec<CommandBlock>,
}

/// Commands of a procedure: a block of `sh` whose first line says where they are given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandBlock {
    /// The machines on which the block is carried out, one after the other.
    pub(crate) machines: Vec<String>,
    /// All of its lines.
    pub(crate) commands: String,
}

/// The machine of blocks that say `# anywhere`.
const ANY_MACHINE: &str = "s1";

impl Guide {
    pub(crate) fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operations.md");
        Self::parse(&fs::read_to_string(path).unwrap())
    }

    pub(crate) fn parse(text: &str) -> Self {
        let mut sections: Vec<Section> = Vec::new();
        let mut fence: Option<(String, String)> = None;
        for line in text.lines() {
            match &mut fence {
                Some((kind, lines)) if line == "```" => {
                    let block = if kind == "sh" { CommandBlock::parse(lines) } else { None };
                    let section = sections.last_mut().expect("a heading is above each block");
                    section.blocks.extend(block);
                    fence = None;
                }
                Some((_, lines)) => *lines += &format!("{line}\n"),
                None => match (line.strip_prefix("```"), line.starts_with('#')) {
                    (Some(kind), _) => fence = Some((kind.to_owned(), String::new())),
                    (None, true) => sections.push(Section {
                        heading: line.trim_start_matches('#').trim().to_owned(),
                        text: String::new(),
                        blocks: Vec::new(),
                    }),
                    (None, false) => {}
                },
            }
            if let Some(section) = sections.last_mut() {
                section.text += &format!("{line}\n");
            }
        }
        assert!(fence.is_none(), "a block has no end");
        Self { sections }
    }

    /// The section with this heading.
    pub(crate) fn section(&self, heading: &str) -> &Section {
        let found = self.sections.iter().find(|section| section.heading == heading);
        found.unwrap_or_else(|| panic!("docs/operations.md has no heading {heading:?}"))
    }
}

impl CommandBlock {
    /// `None` for an example, which says not where it is carried out.
    fn parse(lines: &str) -> Option<Self> {
        let first = lines.lines().next()?.strip_prefix("# ")?;
        let machines: Vec<String> = match (first.strip_prefix("on "), first) {
            (Some(names), _) => {
                let words = names.split(|letter: char| !letter.is_ascii_alphanumeric());
                words.filter(|word| is_machine(word)).map(str::to_owned).collect()
            }
            (None, "anywhere") => vec![ANY_MACHINE.to_owned()],
            (None, _) => return None,
        };
        assert!(!machines.is_empty(), "`# {first}` names no machine: `# on s1`");
        Some(Self { machines, commands: lines.to_owned() })
    }
}

/// Machines are called as their stores are, `s1` to `s9`.
fn is_machine(word: &str) -> bool {
    word.strip_prefix('s').is_some_and(|digit| digit.len() == 1 && digit != "0" && digit < ":")
}

#[test]
fn blocks_that_say_where_are_commands_and_others_are_examples() {
    let text = "# Top\n\n## One\n```sh\n# on each of s1, s2 and s9\nflotilla a\n# more\n```\n\
                ```toml\n# on s1\n```\n```sh\nflotilla b   # an example\n```\n## Two\ntext\n\
                ```sh\n# anywhere\nflotilla c\n```\n";
    let guide = Guide::parse(text);
    let headings: Vec<_> = guide.sections.iter().map(|it| it.heading.as_str()).collect();
    assert_eq!(headings, ["Top", "One", "Two"]);
    let block = |machines: &[&str], commands: &str| CommandBlock {
        machines: machines.iter().map(|it| (*it).to_owned()).collect(),
        commands: commands.to_owned(),
    };
    let first = block(&["s1", "s2", "s9"], "# on each of s1, s2 and s9\nflotilla a\n# more\n");
    assert_eq!(guide.section("One").blocks, [first]);
    assert_eq!(guide.section("Two").blocks, [block(&["s1"], "# anywhere\nflotilla c\n")]);
    assert!(guide.section("Two").text.contains("text"));
    let nowhere = std::panic::catch_unwind(|| Guide::parse("# T\n```sh\n# on it\n```\n"));
    assert!(nowhere.is_err(), "a block on no machine");
}
