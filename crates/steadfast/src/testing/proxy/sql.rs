//! Just enough SQL to tell where a statement ends, and whether it begins or ends a transaction.

/// How much of a statement is kept to be shown: enough for any of ours, and ten thousand of them are no burden.
const TEXT_LENGTH_MAX: usize = 2_000;

/// One statement, with every run of blanks and comments outside of quotes made one space.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Statement {
    pub(super) text: String,
    pub(super) kind: Kind,
}

/// What a statement means to the transaction it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Begin,
    Commit,
    Rollback,
    Other,
}

impl Statement {
    pub(super) fn new(mut text: String) -> Self {
        let kind = Kind::of(&text);
        if text.len() > TEXT_LENGTH_MAX {
            text.truncate(text.floor_char_boundary(TEXT_LENGTH_MAX));
            text.push('…');
        }
        Self { text, kind }
    }

    /// A statement of which only the beginning was read. It may go on to say anything, so it means nothing.
    pub(super) fn beginning(text: String) -> Self {
        Self {
            kind: Kind::Other,
            ..Self::new(text)
        }
    }
}

impl Kind {
    fn of(text: &str) -> Self {
        let mut words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let mut word = || words.next().unwrap_or_default().to_ascii_uppercase();
        let (first, second, third) = (word(), word(), word());
        match (first.as_str(), second.as_str(), third.as_str()) {
            ("BEGIN", ..) | ("START", "TRANSACTION", _) => Self::Begin,
            // Of a transaction that was prepared elsewhere, or back to a savepoint: this transaction goes on.
            (_, "PREPARED", _) | ("ROLLBACK", "TO", _) | ("ROLLBACK", _, "TO") => Self::Other,
            ("COMMIT" | "END", ..) => Self::Commit,
            ("ROLLBACK" | "ABORT", ..) => Self::Rollback,
            _ => Self::Other,
        }
    }
}

/// The statements of a text, separated by `;` outside of quotes, comments and parentheses. Empty ones are left out.
///
/// The one thing it does not know is the body of `BEGIN ATOMIC … END`.
pub(super) fn split(sql: &str) -> Vec<String> {
    let mut statements = vec![String::new()];
    let (mut at, mut depth, mut is_blank) = (0, 0_usize, false);
    while at < sql.len() {
        let (token, length) = token(&sql[at..]);
        let text = &sql[at..at + length];
        at += length;
        match token {
            Token::Blank => is_blank = true,
            Token::Semicolon if depth == 0 => {
                statements.push(String::new());
                is_blank = false;
            }
            _ => {
                depth = match text {
                    "(" => depth + 1,
                    ")" => depth.saturating_sub(1),
                    _ => depth,
                };
                if let Some(statement) = statements.last_mut() {
                    if std::mem::take(&mut is_blank) && !statement.is_empty() {
                        statement.push(' ');
                    }
                    statement.push_str(text);
                }
            }
        }
    }
    statements.retain(|statement| !statement.is_empty());
    statements
}

enum Token {
    Blank,
    Semicolon,
    Other,
}

/// What a text that is not empty starts with, and how long that is.
fn token(sql: &str) -> (Token, usize) {
    let bytes = sql.as_bytes();
    let run = |is_in: fn(u8) -> bool| bytes.iter().position(|b| !is_in(*b)).unwrap_or(sql.len());
    let through = |end: &str, from: usize| sql[from..].find(end).map_or(sql.len(), |at| from + at + end.len());
    match bytes {
        [b';', ..] => (Token::Semicolon, 1),
        [b'-', b'-', ..] => (Token::Blank, through("\n", 2)),
        [b'/', b'*', ..] => (Token::Blank, block_comment(bytes)),
        [b, ..] if is_blank(*b) => (Token::Blank, run(is_blank)),
        [b'E' | b'e', b'\'', ..] => (Token::Other, 1 + string_with_escapes(&bytes[1..])),
        // A doubled quote ends one token and begins the next: the same in the end.
        [b'\'', ..] => (Token::Other, through("'", 1)),
        [b'"', ..] => (Token::Other, through("\"", 1)),
        [b'$', ..] => (Token::Other, dollar_tag(sql).map_or(1, |tag| through(tag, tag.len()))),
        [b, ..] if is_word(*b) => (Token::Other, run(|b| is_word(b) || b == b'$')),
        _ => (Token::Other, 1),
    }
}

fn is_blank(b: u8) -> bool {
    b.is_ascii_whitespace() || b == b'\x0b'
}

/// Whatever is not ASCII is a letter to PostgreSQL.
fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_' || !b.is_ascii()
}

/// The length of a comment that may contain comments.
fn block_comment(bytes: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while at < bytes.len() {
        let step = match &bytes[at..] {
            [b'/', b'*', ..] => {
                depth += 1;
                2
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                2
            }
            _ => 1,
        };
        at += step;
        if depth == 0 {
            break;
        }
    }
    at
}

/// The length of a string in which a backslash takes the next byte with it.
fn string_with_escapes(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at..] {
            [b'\\' | b'\'', b'\'', ..] | [b'\\', b'\\', ..] => at += 2,
            [b'\'', ..] => return at + 1,
            _ => at += 1,
        }
    }
    at
}

/// `$$` or `$tag$`, if the text starts with one; `$1` is a parameter.
fn dollar_tag(sql: &str) -> Option<&str> {
    let name = sql[1..].split('$').next()?;
    let is_tag = name.bytes().all(is_word) && !name.starts_with(|c: char| c.is_ascii_digit());
    sql.get(..name.len() + 2).filter(|_| is_tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_semicolon_separates_only_where_the_server_would_see_it() {
        let one = |sql: &str| assert_eq!(split(sql), [sql], "{sql}");
        one("SELECT 'a;b', 'it''s; fine', \"odd;\"\"name\"");
        one(r"SELECT E'a\';b', e'\\', E'''\';'");
        one("SELECT $$a;b$$, $x$ $$ ; $y$ ; $x$");
        one("CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2)");
        one("SELECT ';é;' FROM späße");
        assert_eq!(split("SELECT '\\'; SELECT 2"), ["SELECT '\\'", "SELECT 2"], "no escape");
        assert_eq!(split("SELECT $1; SELECT $2"), ["SELECT $1", "SELECT $2"]);
        assert_eq!(split("SELECT a$b$; SELECT c$b$"), ["SELECT a$b$", "SELECT c$b$"]);
        assert_eq!(split("SELECT type'a'; SELECT 2"), ["SELECT type'a'", "SELECT 2"]);
        assert_eq!(
            split("BEGIN; SELECT 1 -- ; no\n;COMMIT"),
            ["BEGIN", "SELECT 1", "COMMIT"]
        );
        assert_eq!(split("a /* ; /* ; */ ; */ b; c"), ["a b", "c"]);
    }

    #[test]
    fn blanks_and_comments_are_one_space_and_nothing_is_no_statement() {
        assert_eq!(
            split("\n  SELECT\t1 ,\r\n 'two  blanks' -- why\n FROM t  "),
            ["SELECT 1 , 'two  blanks' FROM t"]
        );
        assert!(split("").is_empty());
        assert!(split(" ; ;; -- nothing\n /* at all */ ;").is_empty());
    }

    #[test]
    fn what_ends_too_early_is_taken_as_it_is() {
        for sql in [
            "SELECT 'a;",
            "SELECT \"a;",
            "SELECT $x$ a; $x",
            "SELECT E'a\\",
            "SELECT E'",
            "$",
            "$é",
            ")",
        ] {
            assert_eq!(split(sql), [sql], "{sql}");
        }
        for sql in ["SELECT 1 /* a; /* b */", "SELECT 1 -- a;", "SELECT 1 /*/"] {
            assert_eq!(split(sql), ["SELECT 1"], "{sql}");
        }
    }

    #[test]
    fn any_noise_is_split_without_a_panic_and_no_statement_is_lost_twice() {
        let alphabet = [
            "'", "\"", "$", "$a$", "$$", ";", "--", "\n", "/*", "*/", "(", ")", "E'", "\\", "é", "x", " ",
        ];
        let mut random = super::super::fault::Random::new(7);
        for _ in 0..20_000 {
            let length = random.next() % 24;
            let sql: String = (0..length)
                .map(|_| alphabet[random.next() as usize % alphabet.len()])
                .collect();
            let statements = split(&sql);
            assert!(statements.len() <= sql.matches(';').count() + 1, "{sql}");
            assert!(statements.iter().map(String::len).sum::<usize>() <= sql.len(), "{sql}");
        }
    }

    #[test]
    fn the_ends_of_a_transaction_are_known_by_all_their_names() {
        let kind = |sql: &str| Statement::new(split(sql).concat()).kind;
        for sql in [
            "BEGIN",
            "begin isolation level serializable",
            "START TRANSACTION READ ONLY",
        ] {
            assert_eq!(kind(sql), Kind::Begin, "{sql}");
        }
        for sql in ["COMMIT", "commit work", "END", "/* why */ COMMIT AND CHAIN", "COMMIT;"] {
            assert_eq!(kind(sql), Kind::Commit, "{sql}");
        }
        for sql in ["ROLLBACK", "ABORT", "ROLLBACK WORK"] {
            assert_eq!(kind(sql), Kind::Rollback, "{sql}");
        }
        for sql in [
            "COMMIT PREPARED 'x'",
            "ROLLBACK TO SAVEPOINT a",
            "ROLLBACK TRANSACTION TO a",
            "START_IT()",
            "SELECT 'COMMIT'",
            "ENDS",
            "",
        ] {
            assert_eq!(kind(sql), Kind::Other, "{sql}");
        }
    }

    #[test]
    fn a_long_statement_is_cut_between_characters() {
        let statement = Statement::new("é".repeat(3 * TEXT_LENGTH_MAX));
        assert!(statement.text.len() <= TEXT_LENGTH_MAX + '…'.len_utf8());
        assert!(statement.text.ends_with("é…"));
    }
}
