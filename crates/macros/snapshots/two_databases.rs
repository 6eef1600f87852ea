#[doc = "[`Orders`] on a database: its commands and queries, to be called and to be mounted."]
pub struct OrdersService<Db: ::steadfast::Database> {
    service: ::std::sync::Arc<Orders>,
    steadfast: ::steadfast::Steadfast<Db>,
}
impl<Db: ::steadfast::Database> ::core::clone::Clone for OrdersService<Db> {
    fn clone(&self) -> Self {
        Self {
            service: ::std::sync::Arc::clone(&self.service),
            steadfast: ::core::clone::Clone::clone(&self.steadfast),
        }
    }
}
impl Orders {
    #[doc = r" Puts the service on a database."]
    pub fn on<Db: ::steadfast::Database>(self, steadfast: &::steadfast::Steadfast<Db>) -> OrdersService<Db> {
        let service = ::core::concat!(::core::module_path!(), "::", "Orders");
        ::steadfast::service::register(steadfast, service, &["orders.place", "orders.show"]);
        OrdersService {
            service: ::std::sync::Arc::new(self),
            steadfast: ::core::clone::Clone::clone(steadfast),
        }
    }
}
impl Orders {
    fn check(&self, order: &PlaceOrder) -> Result<(), OrderError> {
        order.is_possible()
    }
}
const _: () = {
    type Db = ::steadfast::sqlx::Sqlite;
    #[allow(dead_code, clippy::too_many_arguments)]
    trait OrdersHandlers {
        async fn place(&self, _: &mut Tx<Db>, _: &Owner, _: PlaceOrder) -> Result<Order, OrderError>;
        async fn show(&self, _: &Pool<Db>, _: i64) -> Result<Order, OrderError>;
    }
    impl OrdersHandlers for Orders {
        #[doc = " Places an order."]
        async fn place(&self, tx: &mut Tx<Db>, owner: &Owner, order: PlaceOrder) -> Result<Order, OrderError> {
            self.check(&order)?;
            Ok(insert(tx.db(), owner, order).await?)
        }
        async fn show(&self, db: &Pool<Db>, id: i64) -> Result<Order, OrderError> {
            Ok(select(db, id).await?)
        }
    }
    impl OrdersService<Db> {
        #[doc = " Places an order."]
        pub async fn place(
            &self,
            owner: &::steadfast::Owner,
            key: &str,
            order: PlaceOrder,
        ) -> ::steadfast::Result<::steadfast::Reply<Order>> {
            let command = self
                .steadfast
                .command("orders.place", key)
                .retention(::core::time::Duration::from_millis(172800000u64))
                .owner(owner)
                .input(&order);
            command
                .run(async |tx: &mut ::steadfast::Tx<Db>| {
                    <Orders as OrdersHandlers>::place(&self.service, tx, owner, ::core::clone::Clone::clone(&order))
                        .await
                        .map_err(::core::convert::Into::into)
                })
                .await
        }
        #[doc = "The query `orders.show`."]
        pub async fn show(&self, id: i64) -> ::steadfast::Result<Order> {
            ::steadfast::service::answered(
                <Orders as OrdersHandlers>::show(&self.service, self.steadfast.pool(), id).await,
            )
        }
        #[doc = r" The routes of the service, each command with its key and each query without."]
        pub fn routes<State: ::core::clone::Clone + ::core::marker::Send + ::core::marker::Sync + 'static>(
            &self,
        ) -> ::steadfast::service::Router<State>
        where
            Self: 'static,
        {
            let router = ::steadfast::service::Router::new();
            let router = router.route(
                "/orders",
                ::steadfast::service::command(
                    ::steadfast::service::MethodFilter::POST,
                    self.steadfast
                        .idempotent()
                        .operation("orders.place")
                        .retention(::core::time::Duration::from_millis(172800000u64)),
                    &self.service,
                    |service, mut tx, call| async move {
                        let answer = <Orders as OrdersHandlers>::place(
                            &service,
                            &mut tx,
                            call.owner()?,
                            call.input::<PlaceOrder>()?,
                        )
                        .await
                        .map_err(::steadfast::service::failed)?;
                        ::core::result::Result::Ok(
                            ::steadfast::service::Answer::new(201, &answer)?
                                .location(::std::format!("/orders/{}", ::steadfast::service::segment(&answer.id))),
                        )
                    },
                ),
            );
            let router = router.route(
                "/orders/{id}",
                ::steadfast::service::query(&self.steadfast, &self.service, |service, sf, call| async move {
                    let answer = <Orders as OrdersHandlers>::show(&service, sf.pool(), call.path::<i64>("id")?)
                        .await
                        .map_err(::steadfast::service::failed)?;
                    ::core::result::Result::Ok(
                        ::steadfast::service::Answer::new(200, &answer)?
                            .max_age(::core::time::Duration::from_millis(60000u64)),
                    )
                }),
            );
            router
        }
    }
};
const _: () = {
    type Db = ::steadfast::sqlx::Postgres;
    #[allow(dead_code, clippy::too_many_arguments)]
    trait OrdersHandlers {
        async fn place(&self, _: &mut Tx<Db>, _: &Owner, _: PlaceOrder) -> Result<Order, OrderError>;
        async fn show(&self, _: &Pool<Db>, _: i64) -> Result<Order, OrderError>;
    }
    impl OrdersHandlers for Orders {
        #[doc = " Places an order."]
        async fn place(&self, tx: &mut Tx<Db>, owner: &Owner, order: PlaceOrder) -> Result<Order, OrderError> {
            self.check(&order)?;
            Ok(insert(tx.db(), owner, order).await?)
        }
        async fn show(&self, db: &Pool<Db>, id: i64) -> Result<Order, OrderError> {
            Ok(select(db, id).await?)
        }
    }
    impl OrdersService<Db> {
        #[doc = " Places an order."]
        pub async fn place(
            &self,
            owner: &::steadfast::Owner,
            key: &str,
            order: PlaceOrder,
        ) -> ::steadfast::Result<::steadfast::Reply<Order>> {
            let command = self
                .steadfast
                .command("orders.place", key)
                .retention(::core::time::Duration::from_millis(172800000u64))
                .owner(owner)
                .input(&order);
            command
                .run(async |tx: &mut ::steadfast::Tx<Db>| {
                    <Orders as OrdersHandlers>::place(&self.service, tx, owner, ::core::clone::Clone::clone(&order))
                        .await
                        .map_err(::core::convert::Into::into)
                })
                .await
        }
        #[doc = "The query `orders.show`."]
        pub async fn show(&self, id: i64) -> ::steadfast::Result<Order> {
            ::steadfast::service::answered(
                <Orders as OrdersHandlers>::show(&self.service, self.steadfast.pool(), id).await,
            )
        }
        #[doc = r" The routes of the service, each command with its key and each query without."]
        pub fn routes<State: ::core::clone::Clone + ::core::marker::Send + ::core::marker::Sync + 'static>(
            &self,
        ) -> ::steadfast::service::Router<State>
        where
            Self: 'static,
        {
            let router = ::steadfast::service::Router::new();
            let router = router.route(
                "/orders",
                ::steadfast::service::command(
                    ::steadfast::service::MethodFilter::POST,
                    self.steadfast
                        .idempotent()
                        .operation("orders.place")
                        .retention(::core::time::Duration::from_millis(172800000u64)),
                    &self.service,
                    |service, mut tx, call| async move {
                        let answer = <Orders as OrdersHandlers>::place(
                            &service,
                            &mut tx,
                            call.owner()?,
                            call.input::<PlaceOrder>()?,
                        )
                        .await
                        .map_err(::steadfast::service::failed)?;
                        ::core::result::Result::Ok(
                            ::steadfast::service::Answer::new(201, &answer)?
                                .location(::std::format!("/orders/{}", ::steadfast::service::segment(&answer.id))),
                        )
                    },
                ),
            );
            let router = router.route(
                "/orders/{id}",
                ::steadfast::service::query(&self.steadfast, &self.service, |service, sf, call| async move {
                    let answer = <Orders as OrdersHandlers>::show(&service, sf.pool(), call.path::<i64>("id")?)
                        .await
                        .map_err(::steadfast::service::failed)?;
                    ::core::result::Result::Ok(
                        ::steadfast::service::Answer::new(200, &answer)?
                            .max_age(::core::time::Duration::from_millis(60000u64)),
                    )
                }),
            );
            router
        }
    }
};
