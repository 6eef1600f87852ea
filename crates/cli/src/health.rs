//! `steadfast health`: whether the database answers and has the tables this version needs.

use serde::Serialize;

use crate::Context;
use crate::database::{Access, on_database};
use crate::error::{CliError, Exit, Result};

#[derive(Serialize)]
struct Shown<'e> {
    healthy: bool,
    code: Option<&'static str>,
    what: Option<&'e str>,
}

pub(crate) async fn run(context: &Context) -> Result<Exit> {
    let looked = on_database!(context, Access::Read, builder => match builder {
        Ok(builder) => builder.build().await.map(drop).map_err(CliError::from),
        Err(error) => Err(error),
    });
    match looked {
        Ok(()) => {
            let shown = Shown {
                healthy: true,
                code: None,
                what: None,
            };
            let found = "the database answers, and its tables are of this version";
            context.output.record(&shown, &[("healthy", found.to_owned())])?;
            Ok(Exit::Ok)
        }
        Err(error) if error.exit == Exit::Usage => Err(error),
        Err(mut error) => {
            if context.output.is_json {
                context.output.objects(&[Shown {
                    healthy: false,
                    code: error.code().map(steadfast::Code::as_str),
                    what: Some(error.what()),
                }])?;
            }
            error.exit = Exit::Unhealthy;
            Err(error)
        }
    }
}
