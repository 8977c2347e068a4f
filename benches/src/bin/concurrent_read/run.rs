//! The results of a run: one half without, one with large scans.

use flotilla_cli::tool::Error;

use super::pace::Tally;

/// The results of one half.
#[derive(Clone, Debug)]
pub(crate) struct Half {
    pub(crate) scans: Tally,
    pub(crate) puts: Tally,
    /// Of the large scans, if there were any.
    pub(crate) large: Option<Tally>,
}

/// One run: without large scans, then with them.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) without: Half,
    pub(crate) with: Half,
}

impl Run {
    /// All that was asked, of every kind.
    pub(crate) fn tallies(&self) -> impl Iterator<Item = &Tally> {
        let halves = [&self.without, &self.with];
        halves.into_iter().flat_map(|half| {
            [Some(&half.scans), Some(&half.puts), half.large.as_ref()].into_iter().flatten()
        })
    }
}

/// Figures of requests some of which failed are not what they seem: the first failure is the error.
pub(crate) fn judge(runs: &[Run]) -> Result<(), Error> {
    let tallies = || runs.iter().flat_map(Run::tallies);
    let failed = tallies().map(|tally| tally.failed).sum();
    let asked = failed + tallies().map(|tally| tally.latencies.len()).sum::<u64>();
    match tallies().find_map(|tally| tally.first_failure.as_ref()) {
        None => Ok(()),
        Some(first) => Err(Error::Failed { failed, asked, first: first.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use flotilla_client::Error as ClientError;

    use super::*;

    #[test]
    fn a_failure_of_any_kind_fails_the_experiment() {
        let half = |large| Half { scans: Tally::new(), puts: Tally::new(), large };
        let failed = Tally {
            failed: 2,
            first_failure: Some(ClientError::Config("no".to_owned())),
            ..Tally::new()
        };
        let good = Run { without: half(None), with: half(Some(Tally::new())) };
        assert!(judge(std::slice::from_ref(&good)).is_ok());
        let bad = Run { without: half(None), with: half(Some(failed)) };
        let told = judge(&[good, bad]).unwrap_err().to_string();
        assert!(told.starts_with("2 of 2 requests failed"), "{told}");
    }
}
