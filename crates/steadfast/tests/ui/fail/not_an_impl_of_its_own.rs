#![allow(unused)]

trait Trait {
    fn name(&self) -> String;
}

struct Orders;

#[steadfast::service(db = Sqlite)]
impl Trait for Orders {
    #[command("orders.name")]
    fn name(&self) -> String {
        String::new()
    }
}

#[steadfast::service(db = Sqlite)]
struct Payments;

fn main() {
    // What was refused is still there: nothing is said of these lines.
    let name = Orders.name();
    let payments = Payments;
}
