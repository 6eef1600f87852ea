//! What is written for an event, and what is said of a wrong one, on tokens. What only the compiler can find is in
//! `crates/steadfast/tests/ui`.

use super::*;
use crate::snapshot::{assert_snapshot, said};

fn expanded(item: &str) -> (TokenStream, Vec<(String, String)>) {
    let (written, mistakes) = expand_collecting(item.parse().expect("tokens"));
    (written, said(mistakes))
}

fn written(item: &str) -> String {
    let (written, mistakes) = expanded(item);
    assert_eq!(mistakes, [], "{item}");
    written.to_string().replace(' ', "")
}

#[test]
fn an_event_is_written_as_a_person_would() {
    let (written, mistakes) = expanded(
        r#"
        #[event("order.placed", version = 2, ordering_key = order_id, expires_after = "7d", delay = "10m")]
        #[serde(rename_all = "camelCase")]
        pub struct OrderPlaced {
            order_id: Uuid,
            #[redact]
            email_address: String,
            #[redact]
            #[serde(rename = "tel")]
            phone: Option<String>,
        }
        "#,
    );
    assert_eq!(mistakes, []);
    assert_snapshot("event", &written);
}

#[test]
fn only_what_is_said_is_written() {
    let few = written("#[event(\"stock.empty\",)] struct Empty;");
    let expected = "#[automatically_derived]impl::steadfast::EventforEmpty{constTYPE:&'staticstr=\"stock.empty\";}";
    assert_eq!(few, expected);
    let enumeration = written("#[event(\"a\", in_process, crate = reliable)] enum Moved { Here(u8), There { x: u8 } }");
    assert_eq!(
        enumeration,
        "#[automatically_derived]implreliable::EventforMoved{constTYPE:&'staticstr=\"a\";constIN_PROCESS:bool=true;}"
    );
}

#[test]
fn events_are_ordered_by_a_field_or_by_what_self_says() {
    for (key, lent) in [
        ("order_id", "&self.order_id"),
        ("r#type", "&self.r#type"),
        ("self.order_id", "&self.order_id"),
        ("self.r#type.name()", "&self.r#type.name()"),
        ("self.order_id / 2", "&(self.order_id/2)"),
        (
            "format!(\"{}-{}\", self.order_id, self.r#type)",
            "&format!(\"{}-{}\",self.order_id,self.r#type)",
        ),
    ] {
        let written = written(&format!(
            "#[event(\"a\", ordering_key = {key})] struct A {{ order_id: u64, r#type: Kind }}"
        ));
        let some = format!("::core::option::Option::Some(::std::string::ToString::to_string({lent}))");
        assert!(written.contains(&some), "{written}");
    }
    assert!(written("#[event(\"a\", ordering_key = self.0)] struct A(u64);").contains("to_string(&self.0)"));
    assert!(written("#[event(\"a\", ordering_key = self.key())] enum A { B }").contains("to_string(&self.key())"));
}

/// That serde calls them so too is tested in `crates/steadfast/tests/service/events.rs`.
#[test]
fn fields_are_hidden_by_their_names_in_json() {
    let redacted = |container: &str, field: &str| {
        let written = written(&format!(
            "#[event(\"a\")] {container} struct A {{ {field} r#first_name: String, other: u8 }}"
        ));
        let list = written.split("&'static[&'staticstr]=&[\"").nth(1).expect("a list");
        list.split('"').next().expect("a name").to_owned()
    };
    for (rule, name) in [
        ("lowercase", "first_name"),
        ("UPPERCASE", "FIRST_NAME"),
        ("PascalCase", "FirstName"),
        ("camelCase", "firstName"),
        ("snake_case", "first_name"),
        ("SCREAMING_SNAKE_CASE", "FIRST_NAME"),
        ("kebab-case", "first-name"),
        ("SCREAMING-KEBAB-CASE", "FIRST-NAME"),
    ] {
        assert_eq!(
            redacted(
                &format!("#[serde(deny_unknown_fields, rename_all = {rule:?})]"),
                "#[redact]"
            ),
            name
        );
        assert_eq!(
            redacted(&format!("#[serde(rename_all(serialize = {rule:?}))]"), "#[redact]"),
            name
        );
    }
    assert_eq!(
        redacted("#[serde(rename_all(deserialize = \"camelCase\"))]", "#[redact]"),
        "first_name"
    );
    let renamed = "#[redact] #[serde(default)] #[serde(skip_serializing_if = \"String::is_empty\", rename = \"n\")]";
    assert_eq!(redacted("#[serde(rename_all = \"camelCase\")]", renamed), "n");
    let both = "#[serde(rename(serialize = \"to\", deserialize = \"from\"))] #[redact]";
    assert_eq!(redacted("", both), "to");
}

#[test]
fn a_wrong_event_is_told_why_and_what_to_write() {
    let name = "; write 1 to 100 lower-case letters, digits, `_` and `-`, in parts with a dot between them, as in \"order.placed\"";
    let unnamed =
        "SF015: an event has a name that outlives `A`, because it is stored; write `#[event(\"order.placed\")]`";
    for (item, points_at, says) in [
        ("struct A;", "A", unnamed.to_owned()),
        ("#[event] struct A;", "#[event]", unnamed.to_owned()),
        ("#[event(version = 2)] struct A;", "#[event(version = 2)]", unnamed.to_owned()),
        (
            "#[event(\"OrderPlaced\")] struct A;",
            "\"OrderPlaced\"",
            format!("SF015: \"OrderPlaced\" has 'O' in it{name}"),
        ),
        (
            "#[event(\"a\")] #[event(\"b\")] struct A;",
            "#[event(\"b\")]",
            "SF015: an event is declared once; put both attributes into one".to_owned(),
        ),
        (
            "#[event(\"a\")] union A { a: u8 }",
            "#[event(\"a\")] union A { a: u8 }",
            "SF015: an event is what JSON can say; write a struct or an enum".to_owned(),
        ),
        (
            "#[event(\"a\")] struct A<'a> { name: &'a str }",
            "'a",
            "SF015: `A` is read from a row long after its publisher is gone, so it borrows nothing; write owned types, as `String` for `&str`".to_owned(),
        ),
        (
            "#[event(\"a\")] struct A<T>(T);",
            "T",
            "SF015: rows are stored under one name, and `A` would be many types; write concrete ones, or implement `Event` by hand for each".to_owned(),
        ),
        (
            "#[event(\"a\", version = 0)] struct A;",
            "0",
            "SF015: versions of an event are counted from 1; write `version = 2` for the second".to_owned(),
        ),
        (
            "#[event(\"a\", version = \"2\")] struct A;",
            "\"2\"",
            "SF015: versions of an event are counted from 1; write `version = 2` for the second".to_owned(),
        ),
        (
            "#[event(\"a\", version)] struct A;",
            "version",
            "SF011: `version` has no value; write `version = ..`".to_owned(),
        ),
        (
            "#[event(\"a\", version = 1, version = 2)] struct A;",
            "version",
            "SF011: `version` is there twice; once is enough".to_owned(),
        ),
        (
            "#[event(\"a\", in_process = true)] struct A;",
            "in_process",
            "SF011: `in_process` takes no value, since an event that is stored does not have it; write it alone, or remove it".to_owned(),
        ),
        (
            "#[event(\"a\", orderingkey = id)] struct A { id: u8 }",
            "orderingkey",
            "SF011: `orderingkey` is no option of an event; did you mean `ordering_key`?\nknown: version, in_process, \
             ordering_key, expires_after, delay, crate"
                .to_owned(),
        ),
        (
            "#[event(\"a\" version = 2)] struct A;",
            "version",
            "SF011: an option ends where the next one begins; write `,` before this".to_owned(),
        ),
        (
            "#[event(\"a\", delay = \"10 minutes\")] struct A;",
            "\"10 minutes\"",
            "SF003: \"10 minutes\" is not a duration; write a whole number and a unit: 500ms, 30s, 5m, 24h or 7d".to_owned(),
        ),
        (
            "#[event(\"a\", expires_after = 7)] struct A;",
            "7",
            "SF003: a duration is text; write \"500ms\", \"30s\", \"5m\", \"24h\" or \"7d\"".to_owned(),
        ),
        (
            "#[event(\"a\", expires_after = \"5000d\")] struct A;",
            "\"5000d\"",
            "SF003: \"5000d\" is more than ten years; write less, and keep what must stay longer in a table of yours".to_owned(),
        ),
        (
            "#[event(\"a\", expires_after = \"1h\", delay = \"1h\")] struct A;",
            "expires_after",
            "SF015: this event would be of no use before it is due; write an `expires_after` that is more than its `delay`".to_owned(),
        ),
        (
            "#[event(\"a\", ordering_key = oder_id)] struct A { order_id: u8 }",
            "oder_id",
            "SF015: `oder_id` is no field of `A`; did you mean `order_id`?".to_owned(),
        ),
        (
            "#[event(\"a\", ordering_key = customer)] struct A { order_id: u8 }",
            "customer",
            "SF015: `customer` is no field of `A`; write one of its fields, or an expression of `self`".to_owned(),
        ),
        (
            "#[event(\"a\", ordering_key = id)] struct A(u8);",
            "id",
            "SF015: `id` is no field of `A`; write `self.0` for the first".to_owned(),
        ),
        (
            "#[event(\"a\", ordering_key = id)] enum A { B { id: u8 } }",
            "id",
            "SF015: `id` is no field of `A`; an enum has a key by a method of its own, write `ordering_key = self.key()`".to_owned(),
        ),
        (
            "#[event(\"a\", ordering_key = \"id\")] struct A { id: u8 }",
            "\"id\"",
            "SF015: an event is ordered by something of its own; write a field, as in `ordering_key = order_id`, or an \
             expression of `self`, as in `self.order.id`"
                .to_owned(),
        ),
        (
            "#[event(\"a\")] #[redact] struct A { id: u8 }",
            "#[redact]",
            "SF015: what is hidden are single fields, so that the rest can be looked at; put `#[redact]` on each of them".to_owned(),
        ),
        (
            "#[event(\"a\")] struct A(#[redact] u8);",
            "#[redact]",
            "SF015: a field is hidden by its name in JSON, and this one has none; give it a name".to_owned(),
        ),
        (
            "#[event(\"a\")] struct A { #[redact(id)] id: u8 }",
            "#[redact(id)]",
            "SF015: a field is hidden or it is not; write `#[redact]` alone".to_owned(),
        ),
        (
            "#[event(\"a\")] enum A { B { #[redact] id: u8 } }",
            "#[redact]",
            "SF015: fields are hidden by their names in JSON, and what a variant has is below another name; put it into a \
             struct, and `#[redact]` there"
                .to_owned(),
        ),
        (
            "#[event(\"a\")] struct A { #[redact] #[serde(flatten)] who: Who }",
            "#[redact]",
            "SF015: the members of a flattened field have names of their own; put them into this struct, and `#[redact]` on them".to_owned(),
        ),
        (
            "#[event(\"a\")] #[serde(into = \"Other\")] struct A { #[redact] id: u8 }",
            "#[redact]",
            "SF015: by `#[serde(into)]` there is no member `id` in the JSON of this event; remove one of the two".to_owned(),
        ),
    ] {
        assert_eq!(expanded(item).1, [(says, points_at.to_owned())], "{item}");
    }
}

#[test]
fn what_stays_in_the_process_has_no_row_for_the_rest() {
    let item =
        "#[event(\"a\", in_process, delay = \"1s\", ordering_key = id, expires_after = \"1d\")] struct A { id: u8 }";
    let mistakes = expanded(item).1;
    let at: Vec<_> = mistakes.iter().map(|(_, at)| at.as_str()).collect();
    assert_eq!(at, ["ordering_key", "delay", "expires_after"]);
    let says = "SF015: an event in process is never stored, so there is no row that `delay` could stand in; remove it, or remove `in_process`";
    assert_eq!(mistakes[1].0, says);
}

#[test]
fn all_mistakes_of_an_event_are_said_at_once_and_it_is_still_one() {
    let item = "#[event(\"A\", version = 0, delay = \"soon\", until = 1)] struct A { #[redact(x)] id: u8 }";
    let (written, mistakes) = expanded(item);
    let codes: Vec<_> = mistakes.iter().map(|(message, _)| &message[..5]).collect();
    assert_eq!(codes, ["SF015", "SF015", "SF015", "SF003", "SF011"]);
    assert!(written.to_string().contains("Event for A"), "{written}");
}
