//! The stages in which a server ends.

/// The end of a server, as far as it is to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerStop {
    /// Not at all.
    #[default]
    Not,
    /// It takes no more connections and asks those that are open to end.
    Listening,
    /// Connections break off.
    Connections,
}
