//! Giving back, keeping and settling what a lease holds.

use http::{Response, StatusCode};
use tidegate::store::StoreError;
use tidegate::units::Amount;
use tidegate::{Lease, Settlement};
use tokio::sync::OwnedMutexGuard;

use super::Failure;
use super::fields::{FieldError, Object, amount, is_null, text, whole};
use crate::app::App;
use crate::body::Body;
use crate::leases::{LeaseId, parse_id};
use crate::respond;

/// Gives the lease's places back.
pub(super) async fn release(app: &App, body: &[u8]) -> Result<Response<Body>, Failure> {
    let id = Said::parse(body, &["lease"])?.lease;
    let mut lease = open(app, id).await?;
    let released = app.engine.release(&mut lease).await;
    // What is counted by status or reserved may still be settled.
    app.leases.close(id, &lease, app.now().steady_us);
    told(app, "released", released)
}

/// Keeps the lease's places for another while.
pub(super) async fn renew(app: &App, body: &[u8]) -> Result<Response<Body>, Failure> {
    let id = Said::parse(body, &["lease"])?.lease;
    let lease = open(app, id).await?;
    let renewed = app.engine.renew(&lease).await;
    app.leases.close(id, &lease, app.now().steady_us);
    told(app, "renewed", renewed)
}

/// Tells the true cost, or the answer's status, of what a lease was given for.
pub(super) async fn settle(app: &App, body: &[u8]) -> Result<Response<Body>, Failure> {
    let said = Said::parse(body, &["lease", "cost", "status"])?;
    if said.cost.is_none() && said.status.is_none() {
        return Err(FieldError::new("cost", "is missing: expected `cost` or `status`").into());
    }
    let mut lease = open(app, said.lease).await?;
    let mut settled = Ok(());
    let settlements = [said.cost.map(Settlement::Cost), said.status.map(Settlement::Status)];
    for settlement in settlements.into_iter().flatten() {
        settled = settled.and(app.engine.settle(&mut lease, settlement).await);
    }
    app.leases.close(said.lease, &lease, app.now().steady_us);
    told(app, "settled", settled.map(|()| true))
}

async fn open(app: &App, id: LeaseId) -> Result<OwnedMutexGuard<Lease>, Failure> {
    let unknown =
        "this lease is not known: it was never given, or nothing of it may change any more";
    let lease = app.leases.open(id, app.now().steady_us).await;
    lease.ok_or_else(|| respond::problem(StatusCode::NOT_FOUND, unknown).into())
}

fn told(
    app: &App,
    what: &str,
    result: Result<bool, StoreError>,
) -> Result<Response<Body>, Failure> {
    match result {
        Ok(done) => Ok(respond::json(format!("{{\"{what}\":{done}}}"))),
        Err(error) => {
            app.store_failed(&error, &format!("a lease is not {what}; its holder is told"));
            Err(respond::problem(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()).into())
        }
    }
}

/// What a call says of a lease.
struct Said {
    lease: LeaseId,
    cost: Option<Amount>,
    status: Option<u16>,
}

impl Said {
    fn parse(body: &[u8], fields: &[&str]) -> Result<Self, FieldError> {
        let (mut lease, mut cost, mut status) = (None, None, None);
        for (name, value) in Object::parse(body)?.0 {
            match &*name {
                known if fields.contains(&known) && is_null(value) => {}
                "lease" => {
                    let unreadable = || FieldError::new("lease", "is not the id of a lease");
                    lease = Some(parse_id(&text(&name, value)?).ok_or_else(unreadable)?);
                }
                "cost" if fields.contains(&"cost") => cost = Some(amount(&name, value)?),
                "status" if fields.contains(&"status") => status = Some(http_status(&name, value)?),
                other => {
                    let shown: String = other.chars().take(80).collect();
                    let expected = format!("is not a field here, expected {}", fields.join(", "));
                    return Err(FieldError::new(shown, expected));
                }
            }
        }
        let lease = lease.ok_or_else(|| FieldError::new("lease", "is missing"))?;
        Ok(Self { lease, cost, status })
    }
}

fn http_status(field: &str, value: &serde_json::value::RawValue) -> Result<u16, FieldError> {
    let status = whole(field, value, 599)?;
    let status = u16::try_from(status).ok().filter(|status| *status >= 100);
    status.ok_or_else(|| FieldError::new(field, "expected an HTTP status from 100 to 599"))
}
