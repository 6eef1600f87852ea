#![allow(unused)]

trait Trait {}

struct Orders;

#[steadfast::service(db = Sqlite)]
impl Trait for Orders {}

#[steadfast::service(db = Sqlite)]
struct Payments;

fn main() {}
