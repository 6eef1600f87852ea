//! Finding what somebody may have meant.

/// How alike two words must be, from 0 to 1, for one to be suggested for the other.
const LIKENESS_MIN: f64 = 0.7;

/// The known word that is most like this one, if any is like it at all.
pub(crate) fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let rated = known
        .into_iter()
        .map(|known| (strsim::jaro_winkler(word, known), known));
    let likely = rated.filter(|(likeness, _)| *likeness >= LIKENESS_MIN);
    likely
        .max_by(|one, other| one.0.total_cmp(&other.0))
        .map(|(_, known)| known)
}
