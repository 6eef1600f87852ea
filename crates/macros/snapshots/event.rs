#[automatically_derived]
impl ::steadfast::Event for OrderPlaced {
    const TYPE: &'static str = "order.placed";
    const VERSION: u32 = 2;
    const DELAY: ::core::time::Duration = ::core::time::Duration::from_millis(600000u64);
    const EXPIRES_AFTER: ::core::option::Option<::core::time::Duration> =
        ::core::option::Option::Some(::core::time::Duration::from_millis(604800000u64));
    const REDACTED: &'static [&'static str] = &["emailAddress", "tel"];
    fn ordering_key(&self) -> ::core::option::Option<::std::string::String> {
        ::core::option::Option::Some(::std::string::ToString::to_string(&self.order_id))
    }
}
