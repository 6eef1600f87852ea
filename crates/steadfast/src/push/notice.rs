//! Notices: what processes tell each other when they have appended to streams.
//!
//! Nothing depends on them: whoever hears nothing looks by the clock.

/// How long the text of a notice may be. PostgreSQL takes less than 8,000 bytes.
pub(super) const LENGTH_MAX: usize = 7_900;

/// Stands for every stream, where their names are too many.
pub(super) const ALL: &str = "*";

/// What a notice says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Notice<'n> {
    /// Who hears it has said it.
    Own,
    /// These streams have new entries.
    Streams(Vec<&'n str>),
    /// Any of them may.
    All,
}

/// The text of a notice from the process of this id.
pub(super) fn write<'n>(process: &str, streams: impl Iterator<Item = &'n str>) -> String {
    let mut text = process.to_owned();
    for stream in streams {
        text.push(' ');
        text.push_str(stream);
    }
    match text.len() <= LENGTH_MAX {
        true => text,
        false => format!("{process} {ALL}"),
    }
}

/// What a notice means to the process of this id.
pub(super) fn read<'n>(process: &str, text: &'n str) -> Notice<'n> {
    if text.len() > LENGTH_MAX {
        // It is none of ours: somebody else talks on the channel.
        return Notice::Streams(Vec::new());
    }
    let mut words = text.split(' ');
    if words.next() == Some(process) {
        return Notice::Own;
    }
    let streams: Vec<_> = words.collect();
    match streams.is_empty() || streams.contains(&ALL) {
        true => Notice::All,
        false => Notice::Streams(streams),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_names_streams_or_all_of_them_and_its_own_are_known() {
        let text = write("one", ["topic:a", "user:7"].into_iter());
        assert_eq!(read("two", &text), Notice::Streams(vec!["topic:a", "user:7"]));
        assert_eq!(read("one", &text), Notice::Own);
        let long = "x".repeat(200);
        let text = write("one", std::iter::repeat_n(&*long, 100));
        assert_eq!(read("two", &text), Notice::All);
        assert_eq!(read("two", "something else"), Notice::Streams(vec!["else"]));
        assert_eq!(read("two", ""), Notice::All);
        assert_eq!(
            read("two", &"* ".repeat(LENGTH_MAX)),
            Notice::Streams(vec![]),
            "nobody says so much"
        );
    }
}
