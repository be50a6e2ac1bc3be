//! Giving back, keeping and settling what a lease holds.

use http::{Response, StatusCode};
use tidegate::store::StoreError;
use tidegate::units::Amount;
use tidegate::{Consequences, Reservation, Settlement};
use tokio::sync::OwnedMutexGuard;

use super::Failure;
use super::answer::to_json;
use super::fields::{FieldError, Object, amount, is_null, text, whole};
use crate::app::App;
use crate::body::Body;
use crate::leases::{LeaseId, Named};
use crate::protect::Watched;
use crate::respond;
use crate::seal::Travelled;

/// Gives the lease's places back.
pub(super) async fn release(app: &App, body: &[u8]) -> Result<Response<Body>, Failure> {
    let mut held = Said::parse(app, body, &["lease"])?.open(app).await?;
    let released = app.engine.release_async(held.lease()).await;
    // What is counted by status or reserved may still be settled.
    held.close(app);
    Ok(told(app, "released", released, "a place is not given back; it frees itself", false))
}

/// Keeps the lease's places for another while.
pub(super) async fn renew(app: &App, body: &[u8]) -> Result<Response<Body>, Failure> {
    let mut held = Said::parse(app, body, &["lease"])?.open(app).await?;
    let renewed = app.engine.renew_async(held.lease()).await;
    held.close(app);
    // Nobody else can be given the place while nobody can be asked: its holder goes on.
    Ok(told(app, "renewed", renewed, "a place is not renewed; its holder may try again", true))
}

/// Tells the true cost, or the answer's status, of what a lease was given for.
pub(super) async fn settle(app: &App, body: &[u8]) -> Result<Response<Body>, Failure> {
    let said = Said::parse(app, body, &["lease", "cost", "status"])?;
    let settlement = match (said.cost, said.status) {
        (Some(cost), Some(status)) => Settlement::CostAndStatus(cost, status),
        (Some(cost), None) => Settlement::Cost(cost),
        (None, Some(status)) => Settlement::Status(status),
        (None, None) => {
            let detail = "is missing: expected `cost` or `status`";
            return Err(FieldError::new("cost", detail).into());
        }
    };
    let status = said.status;
    let mut held = said.open(app).await?;
    let mut reported = Consequences::default();
    let settled = match held.may_settle(app).await {
        Ok(true) => {
            let settled = app.engine.settle_async(held.lease(), settlement).await;
            if let Some((status, watched)) = status.zip(held.take_watched(app)) {
                reported = app.answered(&watched.request(app), status).await;
            }
            held.close(app);
            settled.map(|()| true)
        }
        Ok(false) => return Err(unknown()),
        Err(error) => {
            app.metrics.store_failed(&error);
            if held.settle_later(app, settlement) { Ok(true) } else { Err(error) }
        }
    };
    let undone = "a lease is not settled; it stays charged";
    Ok(told_with(app, "settled", settled, undone, false, &penalties(&reported)))
}

/// What events of a status led to, as further members.
fn penalties(reported: &Consequences) -> String {
    if reported.events.is_empty() {
        return String::new();
    }
    let (delay_ms, banned) = (reported.delay_us.div_ceil(1_000), reported.banned);
    let warnings = to_json(&reported.warnings);
    format!(",\"delay_ms\":{delay_ms},\"warnings\":{warnings},\"banned\":{banned}")
}

/// A lease that something is done about.
enum Held {
    /// Nobody else does anything about it meanwhile.
    Kept(LeaseId, OwnedMutexGuard<Reservation>),
    /// Others may have it too.
    Travelled(Box<Travelled>),
}

impl Held {
    fn lease(&mut self) -> &mut Reservation {
        match self {
            Self::Kept(_, lease) => lease,
            Self::Travelled(travelled) => &mut travelled.lease,
        }
    }

    /// Whether it may be settled: one that travels only once in all, and only in its time.
    async fn may_settle(&self, app: &App) -> Result<bool, StoreError> {
        match self {
            Self::Kept(..) => Ok(true),
            Self::Travelled(travelled) => app.may_settle(travelled).await,
        }
    }

    /// Leaves it until the store can say whether it may be settled; whether there is room for that.
    fn settle_later(self, app: &App, settlement: Settlement) -> bool {
        match (self, app.engine.store().shared()) {
            (Self::Travelled(travelled), Some(store)) => store.settle_later(travelled, settlement),
            _ => false,
        }
    }

    /// What was checked, if its status may make an event.
    fn take_watched(&mut self, app: &App) -> Option<Box<Watched>> {
        match self {
            Self::Kept(id, _) => app.leases.take_watched(*id),
            Self::Travelled(travelled) => travelled.watched.take(),
        }
    }

    fn close(self, app: &App) {
        if let Self::Kept(id, lease) = self {
            app.leases.close(id, &lease, app.now().steady_us);
        }
    }
}

fn unknown() -> Failure {
    let detail =
        "this lease is not known: it was never given, or nothing of it may change any more";
    respond::problem(StatusCode::NOT_FOUND, detail).into()
}

/// What became of it. A store that is lost is no error of the caller: what can be done later is, and
/// what cannot is told and counted.
fn told(
    app: &App,
    what: &str,
    result: Result<bool, StoreError>,
    undone: &str,
    otherwise: bool,
) -> Response<Body> {
    told_with(app, what, result, undone, otherwise, "")
}

/// The same with further members.
fn told_with(
    app: &App,
    what: &str,
    result: Result<bool, StoreError>,
    undone: &str,
    otherwise: bool,
    further: &str,
) -> Response<Body> {
    let (done, degraded) = match result {
        Ok(done) => (done, app.engine.store().is_degraded()),
        Err(error) => {
            app.store_failed(&error, undone);
            (otherwise, true)
        }
    };
    let degraded = if degraded { ",\"degraded\":true" } else { "" };
    respond::json(format!("{{\"{what}\":{done}{further}{degraded}}}"))
}

/// What a call says of a lease.
struct Said {
    lease: Named,
    cost: Option<Amount>,
    status: Option<u16>,
}

impl Said {
    fn parse(app: &App, body: &[u8], fields: &[&str]) -> Result<Self, FieldError> {
        let (mut lease, mut cost, mut status) = (None, None, None);
        for (name, value) in Object::parse(body)?.0 {
            match &*name {
                known if fields.contains(&known) && is_null(value) => {}
                "lease" => {
                    let unreadable = || FieldError::new("lease", "is not the id of a lease");
                    let named = app.leases.named(&text(&name, value)?);
                    lease = Some(named.ok_or_else(unreadable)?);
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

    async fn open(self, app: &App) -> Result<Held, Failure> {
        match self.lease {
            Named::Kept(id) => {
                let lease = app.leases.open(id, app.now().steady_us).await.ok_or_else(unknown)?;
                Ok(Held::Kept(id, lease))
            }
            Named::Sealed(travelled) => travelled.map(Held::Travelled).ok_or_else(unknown),
        }
    }
}

fn http_status(field: &str, value: &serde_json::value::RawValue) -> Result<u16, FieldError> {
    let status = whole(field, value, 599)?;
    let status = u16::try_from(status).ok().filter(|status| *status >= 100);
    status.ok_or_else(|| FieldError::new(field, "expected an HTTP status from 100 to 599"))
}

#[cfg(test)]
#[path = "leases/tests.rs"]
mod tests;
