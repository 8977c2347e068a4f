//! Views of a cluster as documents, for a bundle of evidence.

use super::replicas::{self, RepairCommand};
use super::text::ByteFormat;
use super::{stores, views};
use crate::tool::{ClusterTarget, Error};

/// All of them.
pub(crate) const EVIDENCE_VIEWS: [EvidenceView; 3] =
    [EvidenceView::Stores, EvidenceView::Regions, EvidenceView::Repair];

/// A view without arguments that changes nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EvidenceView {
    /// `ctl stores`
    Stores,
    /// `ctl regions`
    Regions,
    /// `ctl repair show`
    Repair,
}

impl EvidenceView {
    /// A name for a file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stores => "stores",
            Self::Regions => "regions",
            Self::Repair => "repair",
        }
    }
}

/// The view as `ctl --json` prints it, with the keys that are in it.
///
/// # Errors
///
/// As the command.
pub(crate) async fn evidence(target: &ClusterTarget, view: EvidenceView) -> Result<Vec<u8>, Error> {
    let format = ByteFormat { is_hex: false, is_json: true, screen_width: None };
    let mut out = Vec::new();
    match view {
        EvidenceView::Stores => stores::run(target, format, &mut out).await?,
        EvidenceView::Regions => views::regions(target, format, &mut out).await?,
        EvidenceView::Repair => {
            replicas::repair(target, &RepairCommand::Show, format, &mut out).await?;
        }
    }
    Ok(out)
}
