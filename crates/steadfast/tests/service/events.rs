//! `#[derive(Event)]`, beside serde's own derives.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use steadfast::Event;

mod renamed {
    pub(crate) use steadfast as reliable;
}

#[derive(Serialize, Deserialize, Event)]
#[event("order.placed", version = 2, ordering_key = order_id, expires_after = "7d", delay = "10m")]
struct OrderPlaced {
    order_id: u64,
    #[redact]
    email: String,
}

#[derive(Serialize, Deserialize, Event)]
#[event("cache.dropped", in_process, crate = renamed::reliable)]
struct CacheDropped;

#[derive(Serialize, Deserialize)]
struct Order {
    id: String,
}

#[derive(Serialize, Deserialize, Event)]
#[event("order.moved", ordering_key = self.key())]
enum Moved {
    Shipped(Order),
    Returned { order: Order },
}

impl Moved {
    fn key(&self) -> &str {
        match self {
            Self::Shipped(order) | Self::Returned { order } => &order.id,
        }
    }
}

#[derive(Serialize, Deserialize, Event)]
#[event("tenant.order", ordering_key = format!("{}/{}", self.tenant, self.order.id))]
struct OfTenant {
    tenant: u8,
    order: Order,
}

#[derive(Serialize, Deserialize, Event)]
#[event("seconds.passed", ordering_key = self.0 / 60)]
struct Passed(u64);

#[test]
fn an_event_is_what_its_attribute_says() {
    let event = OrderPlaced {
        order_id: 7,
        email: "a@example.org".into(),
    };
    assert_eq!(
        (OrderPlaced::TYPE, OrderPlaced::VERSION, OrderPlaced::IN_PROCESS),
        ("order.placed", 2, false)
    );
    assert_eq!(OrderPlaced::DELAY, Duration::from_secs(600));
    assert_eq!(OrderPlaced::EXPIRES_AFTER, Some(Duration::from_secs(7 * 24 * 60 * 60)));
    assert_eq!(OrderPlaced::REDACTED, ["email"]);
    assert_eq!(event.ordering_key().as_deref(), Some("7"));

    assert_eq!(
        (CacheDropped::TYPE, CacheDropped::VERSION, CacheDropped::IN_PROCESS),
        ("cache.dropped", 1, true)
    );
    assert_eq!(
        (CacheDropped::DELAY, CacheDropped::EXPIRES_AFTER),
        (Duration::ZERO, None)
    );
    assert_eq!(CacheDropped::REDACTED, [""; 0]);
    assert_eq!(CacheDropped.ordering_key(), None);
}

#[test]
fn the_ordering_key_is_any_text_of_the_event() {
    let order = || Order { id: "o-1".into() };
    let key = |event: &dyn Fn() -> Option<String>| event().unwrap();
    assert_eq!(key(&|| Moved::Shipped(order()).ordering_key()), "o-1");
    assert_eq!(key(&|| Moved::Returned { order: order() }.ordering_key()), "o-1");
    let of_tenant = OfTenant {
        tenant: 3,
        order: order(),
    };
    assert_eq!(of_tenant.ordering_key().unwrap(), "3/o-1");
    assert_eq!(Passed(150).ordering_key().unwrap(), "2");
}

/// Every rule of serde, on names that are awkward for one of them.
#[test]
fn redacted_fields_have_the_names_that_serde_writes() {
    macro_rules! check {
        ($($rule:literal),*) => {$({
            #[derive(Serialize, Deserialize, Event)]
            #[event("a")]
            #[serde(rename_all = $rule)]
            #[allow(non_snake_case)]
            struct Person {
                #[redact]
                name: u8,
                #[redact]
                first_name: u8,
                #[redact]
                r#type: u8,
                #[redact]
                _leading__and_trailing_: u8,
                #[redact]
                line2_3b: u8,
                #[redact]
                camelHump: u8,
                #[redact]
                größe_ü: u8,
                #[redact]
                #[serde(rename = "Given Name")]
                other: u8,
                #[redact]
                #[serde(rename(serialize = "out", deserialize = "in"), default)]
                both: u8,
            }
            let person = Person {
                name: 0,
                first_name: 0,
                r#type: 0,
                _leading__and_trailing_: 0,
                line2_3b: 0,
                camelHump: 0,
                größe_ü: 0,
                other: 0,
                both: 0,
            };
            let json = serde_json::to_value(&person).unwrap();
            let mut members: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
            let mut redacted = Person::REDACTED.to_vec();
            members.sort_unstable();
            redacted.sort_unstable();
            assert_eq!(redacted, members, $rule);
        })*};
    }
    check!(
        "lowercase",
        "UPPERCASE",
        "PascalCase",
        "camelCase",
        "snake_case",
        "SCREAMING_SNAKE_CASE",
        "kebab-case",
        "SCREAMING-KEBAB-CASE"
    );
}

/// An attribute that comes through a `macro_rules!` means the same.
#[test]
fn a_macro_may_write_events() {
    macro_rules! event {
        ($name:ident, $text:literal, $key:expr, $field:ident) => {
            #[derive(Serialize, Deserialize, Event)]
            #[event($text, ordering_key = $key)]
            struct $name {
                #[redact]
                $field: u64,
            }
        };
    }
    event!(Counted, "count.made", self.count + 1, count);
    assert_eq!(Counted { count: 1 }.ordering_key().unwrap(), "2");
    assert_eq!((Counted::TYPE, Counted::REDACTED), ("count.made", &["count"][..]));
}
