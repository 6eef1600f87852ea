#[doc = "[`Shop`] on a database: its reactions to events."]
struct ShopService<Db: ::steadfast::Database> {
    service: ::std::sync::Arc<Shop>,
    steadfast: ::steadfast::Steadfast<Db>,
}
impl<Db: ::steadfast::Database> ::core::clone::Clone for ShopService<Db> {
    fn clone(&self) -> Self {
        Self {
            service: ::std::sync::Arc::clone(&self.service),
            steadfast: ::core::clone::Clone::clone(&self.steadfast),
        }
    }
}
impl Shop {
    #[doc = r" Puts the service on a database, and registers its reactions there."]
    fn on<Db: ::steadfast::Database>(self, steadfast: &::steadfast::Steadfast<Db>) -> ShopService<Db>
    where
        Self: ::steadfast::service::React<Db>,
    {
        let service = ::std::sync::Arc::new(self);
        ::steadfast::service::React::react(&service, steadfast);
        ShopService {
            service,
            steadfast: ::core::clone::Clone::clone(steadfast),
        }
    }
}
const _: () = {
    type Db = ::steadfast::sqlx::Sqlite;
    impl Shop {
        #[doc = " Sends what was sold."]
        async fn digest(&self, cx: &JobCx<Db>) -> Result<(), Failure> {
            self.mailer.send(cx.key()).await
        }
        async fn count_stock(&self, tx: &mut Tx<Db>, job: CountStock) -> Result<(), Failure> {
            self.count(tx, job).await
        }
    }
    impl ::steadfast::service::React<Db> for Shop {
        fn react(service: &::std::sync::Arc<Self>, steadfast: &::steadfast::Steadfast<Db>) {
            struct TicksOfDigest;
            impl ::steadfast::service::Ticked for TicksOfDigest {
                const NAME: &'static str = "shop.digest";
            }
            steadfast
                .schedule("shop.digest")
                .cron("0 9 * * MON-FRI", "Europe/Madrid")
                .missed(::steadfast::Missed::Last)
                .overlap(::steadfast::Overlap::Skip)
                .job(&<::steadfast::service::Ticks<TicksOfDigest> as ::core::default::Default>::default());
            steadfast
                .handler::<::steadfast::service::Ticks<TicksOfDigest>>()
                .retry(::steadfast::RetryPolicy::checked(
                    3u32,
                    ::steadfast::Backoff::Exponential(::core::time::Duration::from_millis(200u64)),
                    ::core::time::Duration::from_millis(3600000u64),
                    ::steadfast::Jitter::Full,
                    ::core::option::Option::None,
                ))
                .time_limit(::core::time::Duration::from_millis(300000u64))
                .run_outside_boxed({
                    let service = ::core::clone::Clone::clone(service);
                    move |cx, _| {
                        let service = ::core::clone::Clone::clone(&service);
                        ::std::boxed::Box::pin(async move {
                            <Shop>::digest(&service, cx).await.map_err(::core::convert::Into::into)
                        })
                    }
                });
            steadfast
                .schedule("shop.stock")
                .every("15m")
                .job(&<CountStock as ::core::default::Default>::default());
            steadfast
                .handler::<CountStock>()
                .concurrency(2)
                .breaker("stock")
                .run_boxed({
                    let service = ::core::clone::Clone::clone(service);
                    move |tx, event| {
                        let service = ::core::clone::Clone::clone(&service);
                        ::std::boxed::Box::pin(async move {
                            <Shop>::count_stock(&service, tx, event)
                                .await
                                .map_err(::core::convert::Into::into)
                        })
                    }
                });
        }
    }
};
