//! Entries of streams, as clients get them.

use bytes::Bytes;

use crate::clock::rfc3339;
use crate::store::streams::EntryRow;

/// An entry: its number, and the JSON that every client gets. It is written once, however many there are.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) number: i64,
    pub(super) json: Bytes,
}

impl Entry {
    /// The names of streams and types have nothing in them that JSON would escape, and the data is JSON.
    pub(super) fn new(row: &EntryRow) -> Self {
        let EntryRow {
            stream,
            number,
            item,
            event_type,
            ..
        } = row;
        let time = rfc3339(row.created_at.into());
        // On one line, whoever wrote it into the table: lines end events.
        let data = row.data.replace(['\r', '\n'], " ");
        let json =
            format!(r#"{{"stream":"{stream}","id":"{item}","type":"{event_type}","time":"{time}","data":{data}}}"#);
        Self {
            number: *number,
            json: json.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;

    #[test]
    fn an_entry_is_one_line_of_json() {
        let entry = Entry::new(&EntryRow {
            stream: "topic:orders".to_owned(),
            number: 7,
            item: uuid::Uuid::nil(),
            event_type: "order.placed".to_owned(),
            created_at: Timestamp(0),
            data: "{\n  \"order\": 7\r\n}".to_owned(),
        });
        let json: serde_json::Value = serde_json::from_slice(&entry.json).expect("JSON");
        assert_eq!(json["stream"], "topic:orders");
        assert_eq!(json["type"], "order.placed");
        assert_eq!(json["data"]["order"], 7);
        assert!(!entry.json.contains(&b'\n') && !entry.json.contains(&b'\r'));
    }
}
