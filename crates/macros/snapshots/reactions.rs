#[doc = "[`Stock`] on a database: its reactions to events."]
pub struct StockService<Db: ::steadfast::Database> {
    service: ::std::sync::Arc<Stock>,
    steadfast: ::steadfast::Steadfast<Db>,
}
impl<Db: ::steadfast::Database> ::core::clone::Clone for StockService<Db> {
    fn clone(&self) -> Self {
        Self {
            service: ::std::sync::Arc::clone(&self.service),
            steadfast: ::core::clone::Clone::clone(&self.steadfast),
        }
    }
}
impl Stock {
    #[doc = r" Puts the service on a database, and registers its reactions there."]
    pub fn on<Db: ::steadfast::Database>(self, steadfast: &::steadfast::Steadfast<Db>) -> StockService<Db>
    where
        Self: ::steadfast::service::React<Db>,
    {
        let service = ::std::sync::Arc::new(self);
        ::steadfast::service::React::react(&service, steadfast);
        StockService {
            service,
            steadfast: ::core::clone::Clone::clone(steadfast),
        }
    }
}
const _: () = {
    type Db = ::steadfast::sqlx::Sqlite;
    impl Stock {
        #[doc = " Takes what was ordered."]
        pub async fn reserve(&self, tx: &mut Tx<Db>, event: OrderPlaced) -> Result<(), StockError> {
            self.take(tx, &event).await
        }
        async fn mail(&self, cx: &EventCx, event: &OrderPlaced) -> Result<(), Failure> {
            self.mailer.send(cx.key(), event).await
        }
    }
    impl ::steadfast::service::React<Db> for Stock {
        fn react(service: &::std::sync::Arc<Self>, steadfast: &::steadfast::Steadfast<Db>) {
            steadfast
                .reaction::<OrderPlaced>("stock.reserve")
                .retry(::steadfast::RetryPolicy::checked(
                    5u32,
                    ::steadfast::Backoff::Exponential(::core::time::Duration::from_millis(1000u64)),
                    ::core::time::Duration::from_millis(300000u64),
                    ::steadfast::Jitter::Full,
                    ::core::option::Option::None,
                ))
                .concurrency(service.workers)
                .run_boxed({
                    let service = ::core::clone::Clone::clone(service);
                    move |tx, event| {
                        let service = ::core::clone::Clone::clone(&service);
                        ::std::boxed::Box::pin(async move {
                            <Stock>::reserve(&service, tx, event)
                                .await
                                .map_err(::core::convert::Into::into)
                        })
                    }
                });
            steadfast
                .reaction::<orders::OrderPlaced>("stock.mail")
                .lease(::core::time::Duration::from_millis(300000u64))
                .on_dead(::steadfast::OnDead::Skip)
                .time_limit(::core::time::Duration::from_millis(30000u64))
                .run_outside_boxed({
                    let service = ::core::clone::Clone::clone(service);
                    move |cx, event| {
                        let service = ::core::clone::Clone::clone(&service);
                        ::std::boxed::Box::pin(async move {
                            <Stock>::mail(&service, cx, &event)
                                .await
                                .map_err(::core::convert::Into::into)
                        })
                    }
                });
        }
    }
};
