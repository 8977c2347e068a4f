//! A browser without a window that opens the page: Chromium, where one is installed.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::Command;
use tokio::time::timeout;

use crate::http::PATIENCE;

/// The names of Chromium, in the order in which they are tried.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Time of the page that passes before it is looked at, in milliseconds: some polls. It passes
/// faster than that of the test.
const PAGE_MS: u32 = 9_000;

/// Pixels of a screenshot: the whole page.
const WINDOW: &str = "--window-size=1440,2300";

/// The colours that the reader prefers.
#[derive(Clone, Copy)]
pub(crate) enum Scheme {
    Light,
    Dark,
}

pub(crate) struct Browser {
    program: PathBuf,
}

/// The page as the browser has it once its scripts have run.
pub(crate) struct ShownPage {
    markup: String,
}

impl Browser {
    /// The browser of this machine; says so if there is none.
    pub(crate) fn find() -> Option<Self> {
        let named = std::env::var_os("FLOTILLA_CHROMIUM").map(PathBuf::from);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders: Vec<_> = std::env::split_paths(&path).collect();
        let places = NAMES.iter().flat_map(|name| folders.iter().map(move |dir| dir.join(name)));
        let found = named.or_else(|| places.into_iter().find(|program| program.is_file()));
        if found.is_none() {
            println!(
                "skipped: no browser is installed (Debian: apt-get install chromium; another one \
                 is named by FLOTILLA_CHROMIUM)"
            );
        }
        Some(Self { program: found? })
    }

    /// Opens the page of the store at `addr`. Fails if the browser refuses a script or a style, or
    /// a script fails.
    pub(crate) async fn page(&self, addr: &str) -> ShownPage {
        let budget = format!("--virtual-time-budget={PAGE_MS}");
        let markup = self.run(&["--dump-dom", WINDOW, &budget], addr).await;
        ShownPage { markup }
    }

    /// Writes a picture of the page into the folder of the tests' output.
    pub(crate) async fn screenshot(&self, addr: &str, name: &str, scheme: Scheme) {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        std::fs::create_dir_all(folder).unwrap();
        let picture = folder.join(name);
        // A picture of an earlier run proves nothing.
        let _ = std::fs::remove_file(&picture);
        let output = format!("--screenshot={}", picture.display());
        let budget = format!("--virtual-time-budget={PAGE_MS}");
        let colours = match scheme {
            Scheme::Light => "--blink-settings=preferredColorScheme=1",
            Scheme::Dark => "--blink-settings=preferredColorScheme=0",
        };
        self.run(&[&output, WINDOW, &budget, colours, "--hide-scrollbars"], addr).await;
        let bytes = std::fs::metadata(&picture).unwrap().len();
        assert!(bytes > 20_000, "{} has {bytes} bytes", picture.display());
        println!("{}", picture.display());
    }

    async fn run(&self, arguments: &[&str], addr: &str) -> String {
        let profile = tempfile::tempdir().unwrap();
        let mut browser = Command::new(&self.program);
        browser
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-extensions", "--disable-background-networking"])
            .args(["--enable-logging=stderr", "--v=0"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args(arguments)
            .arg(format!("http://{addr}/"))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let ran = timeout(PATIENCE, browser.output()).await.expect("the browser ends").unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{}: {said}", self.program.display());
        for fault in ["Refused to", "Uncaught", "violates the following"] {
            assert!(!said.contains(fault), "{said}");
        }
        String::from_utf8(ran.stdout).unwrap()
    }
}

impl ShownPage {
    /// The markup of the element with an id, from behind its opening tag on.
    fn behind(&self, id: &str) -> &str {
        let tag = format!("id=\"{id}\"");
        let at = self.markup.find(&tag).unwrap_or_else(|| panic!("{id} is not in {}", self.markup));
        self.markup[at..].split_once('>').unwrap().1
    }

    /// The text of an element that has nothing but text.
    pub(crate) fn text(&self, id: &str) -> &str {
        self.behind(id).split('<').next().unwrap()
    }

    /// The markup of a paragraph.
    pub(crate) fn part(&self, id: &str) -> &str {
        self.behind(id).split("</p>").next().unwrap()
    }

    /// Whether an element is hidden.
    pub(crate) fn is_hidden(&self, id: &str) -> bool {
        let tag = format!("id=\"{id}\"");
        let at = self.markup.find(&tag).unwrap();
        self.markup[at..].split('>').next().unwrap().contains("hidden")
    }

    /// How often a piece of markup is there.
    pub(crate) fn count(&self, piece: &str) -> usize {
        self.markup.matches(piece).count()
    }
}
