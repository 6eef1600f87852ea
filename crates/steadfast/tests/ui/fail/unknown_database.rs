#![allow(unused)]

struct Orders;

#[steadfast::service(db = Mysql)]
impl Orders {}

struct Payments;

#[steadfast::service(db = [Sqlite, Sqlite])]
impl Payments {}

struct Returns;

#[steadfast::service(database = Sqlite)]
impl Returns {}

fn main() {}
