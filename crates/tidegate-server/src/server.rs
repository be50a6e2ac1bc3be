//! The life of the daemon: read everything, bind everything, serve, drain, save.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tidegate::clock::{Clock as _, SystemClock};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::admin::{ListenerStatus, Status};
use crate::app::App;
use crate::auth::{Auth, Realm, SharedTokens, Tokens, is_loopback};
use crate::challenge::Challenges;
use crate::config::Config;
use crate::demo;
use crate::drain::{Drain, StopSignals};
use crate::engine::{EngineParts, EngineStart};
use crate::error::StartError;
use crate::files::is_pipe;
use crate::geo::GeoIp;
use crate::jwt::Verifier;
use crate::leases::Leases;
use crate::listen::{Listener, ListenerBounds, Service};
use crate::notify::Notifier;
use crate::open_files::{self, ConnectionDemand, ConnectionShares};
use crate::policies::{PolicyBundle, PolicySource};
use crate::protect::{DelayedAnswers, Load, load, replication};
use crate::reload::Reloader;
use crate::secret::hash_key;
use crate::shared::follow;
use crate::state::{Journals, SaveSummary, StateDir, StateWriter};
use crate::telemetry::{Flush, Log, Metrics};
use crate::tls::{Certificates, Trust};
use crate::watch::{Changes, watch};
use crate::wire::endpoint::Endpoint;
use crate::wire::gateway::{Gateway, GatewayBounds, Upstream};
use crate::wire::routes::{self, Route};

/// The time for the last messages to webhooks.
const NOTIFY_DRAIN: Duration = Duration::from_secs(5);
/// How long the admin listener waits for the body of a call.
const ADMIN_BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the daemon until a signal stops it; `announce` prints a line on standard output.
///
/// # Errors
/// A flag, a file or an address cannot be used, or the state cannot be saved at the end.
pub fn run(config: Config, announce: impl Fn(&str)) -> Result<(), StartError> {
    open_files::raise();
    let mut runtime = match config.threads.map(NonZeroUsize::get) {
        // One thread needs no scheduler between threads.
        Some(1) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if let Some(threads) = config.threads {
        runtime.worker_threads(threads.get());
    }
    runtime.enable_all().build()?.block_on(async {
        let daemon = Daemon::read(Arc::new(config)).await?;
        daemon.serve(announce).await
    })
}

/// Everything that is read before anything listens.
struct Daemon {
    config: Arc<Config>,
    app: Arc<App>,
    source: Arc<PolicySource>,
    policies: PolicyBundle,
    changes: Changes,
    /// The files that can be read only once.
    pipes: Vec<PathBuf>,
    certificates: Option<Arc<Certificates>>,
    trust: Option<Arc<Trust>>,
    tokens: Option<SharedTokens>,
    state: Option<(StateDir, Journals)>,
    flush: Flush,
}

impl Daemon {
    async fn read(config: Arc<Config>) -> Result<Self, StartError> {
        refuse_open_listeners(&config)?;
        if config.public_limits.is_some() && !config.has_gateway() {
            return Err(StartError::new(
                "--public-limits: there is no gateway to show them; give --upstream URL",
            ));
        }
        let clock = SystemClock::new();
        let (log, flush) = Log::start(config.logging, io::stderr(), clock.clone())?;
        // A second daemon in one process logs through the subscriber of the first.
        let _ = tracing::subscriber::set_global_default(log.subscriber());
        let files = config.reloaded_files();
        let pipes: Vec<PathBuf> = files.iter().filter(|file| is_pipe(file)).cloned().collect();
        // Before anything is read, so that no change goes unnoticed.
        let changes = watch(files)?;
        let source = Arc::new(PolicySource::new(Arc::clone(&config), pipes.clone()));
        let policies = source.read()?;
        let certificates = config.tls().map(|(cert, key)| Certificates::load(cert, key));
        let trust = config.upstream_ca.as_deref().map(|ca| Trust::load(Some(ca)));
        let tokens = config.tokens.as_deref().map(Tokens::read).transpose();
        let tokens = tokens.map_err(StartError::new)?.map(ArcSwap::from_pointee).map(Arc::new);
        let (certificates, trust) = (certificates.transpose()?, trust.transpose()?);
        let state = config.state_dir.as_deref().map(StateDir::open).transpose()?;
        let (app, journals) = build_app(&config, &policies, state.as_ref(), log, clock).await?;
        let state = state.zip(journals);
        replication::start(&app).await;
        Ok(Self {
            config,
            app,
            source,
            policies,
            changes,
            pipes,
            certificates,
            trust,
            tokens,
            state,
            flush,
        })
    }

    async fn serve(self, announce: impl Fn(&str)) -> Result<(), StartError> {
        let (hang_up, stop) = (signal(SignalKind::hangup())?, StopSignals::new()?);
        let following = tokio::spawn(follow(Arc::clone(&self.app)));
        let loaded = tokio::spawn(load::follow(Arc::clone(&self.app)));
        let (mut listeners, status) = self.listen()?;
        let reloader = self.reloader(&status);
        let Self { config, app, changes, state, flush, .. } = self;
        let save = |(state, journals)| StateWriter::start(Arc::clone(&app), state, journals);
        let writer = state.map(save).transpose()?;
        for listening in status.listeners() {
            announce(&format!("listening {} {}", listening.name, listening.url));
        }
        if config.is_demo()
            && let Some(gateway) = status.listeners().iter().find(|one| one.name == "gateway")
        {
            announce(&demo::invitation(&gateway.url));
        }
        let stop = reloader.run_until_stopped(changes, hang_up, stop).await;
        listeners.drain(config.bounds.drain_delay, config.bounds.drain_timeout, stop).await;
        app.notifier.finish(NOTIFY_DRAIN).await;
        following.abort();
        loaded.abort();
        if let Some(shared) = app.engine.store().shared() {
            shared.redis().close().await;
        }
        let saved = writer.map_or(Ok(()), save_last);
        drop(flush);
        saved
    }

    /// Binds every listener before the first of them serves.
    fn listen(&self) -> Result<(Listeners, Arc<Status>), StartError> {
        let (config, shares) = (&*self.config, connection_shares(&self.config));
        let bounds = |connections_max| config.bounds.of_listener(connections_max);
        let mut listeners = Listeners::new(self.app.drain.clone());
        let upstream = self.upstream(&mut listeners, bounds(shares.upstream))?;
        let certificates = self.certificates.clone();
        let gateway = upstream.map(|upstream| {
            let listener = bind("gateway", config.gateway, certificates, bounds(shares.gateway));
            listener.map(|listener| (listener, upstream))
        });
        let gateway = gateway.transpose()?;
        let beyond_loopback =
            |address: SocketAddr| self.certificates.clone().filter(|_| !is_loopback(address.ip()));
        let api = bind("api", config.api, beyond_loopback(config.api), bounds(shares.api))?;
        let admin =
            bind("admin", config.admin, beyond_loopback(config.admin), bounds(shares.admin))?;
        let bound = gateway.iter().map(|(gateway, _)| ("gateway", gateway));
        let bound = bound.chain([("api", &api), ("admin", &admin)]).map(|(name, listener)| {
            let (url, connections) = (listener.url()?, listener.open_connections());
            Ok(ListenerStatus { name, url, connections })
        });
        let listening = bound.collect::<io::Result<Vec<_>>>()?;
        let api_auth = Auth::new(Realm::Api, config.api.ip(), self.tokens.clone());
        let admin_auth = Auth::new(Realm::Admin, config.admin.ip(), self.tokens.clone());
        let status = Arc::new(self.status(listening, [&api_auth, &admin_auth]));
        if let Some((listener, upstream)) = gateway {
            let bounds = gateway_bounds(config, &shares);
            let gateway = Gateway::new(Arc::clone(&self.app), upstream, bounds);
            listeners.spawn(listener, gateway.publish_limits(config.public_limits.clone()));
        }
        let endpoint = |routes: &'static [Route], auth, body_timeout| {
            Endpoint::new(routes, Arc::clone(&self.app), Arc::clone(&status), auth, body_timeout)
        };
        listeners.spawn(api, endpoint(routes::API, api_auth, config.bounds.body_timeout));
        listeners.spawn_admin(admin, endpoint(routes::ADMIN, admin_auth, ADMIN_BODY_TIMEOUT));
        Ok((listeners, status))
    }

    /// The service behind the gateway: the operator's, or that of the demo.
    fn upstream(
        &self,
        listeners: &mut Listeners,
        bounds: ListenerBounds,
    ) -> Result<Option<Upstream>, StartError> {
        if let Some(url) = &self.config.upstream {
            return Upstream::with_roots(&url.to_string(), self.trust.clone()).map(Some);
        }
        if !self.config.is_demo() {
            return Ok(None);
        }
        let listener = bind("upstream", SocketAddr::from(([127, 0, 0, 1], 0)), None, bounds)?;
        let url = listener.url()?;
        listeners.spawn_upstream(listener, demo::DemoService);
        Upstream::parse(&url).map(Some)
    }

    /// The status page. Its warnings are logged once.
    fn status(&self, listening: Vec<ListenerStatus>, auths: [&Auth; 2]) -> Status {
        let warnings = auths.into_iter().filter_map(Auth::warning);
        let warnings: Vec<String> = warnings.map(str::to_owned).collect();
        for warning in self.policies.warnings.iter().chain(&warnings) {
            tracing::warn!(event = "warning", "{warning}");
        }
        let saving = self.state.as_ref().map(|(state, _)| Arc::clone(state.health()));
        let (now, max_keys) = (self.app.now(), self.config.max_keys);
        Status::new(now, listening, max_keys, &self.policies, warnings, saving)
    }

    /// Everything that a reload reads again.
    fn reloader(&self, status: &Arc<Status>) -> Reloader {
        let (config, app) = (&self.config, &self.app);
        let mut reloader = Reloader::new(Arc::clone(app), Arc::clone(status), self.pipes.clone());
        if let Some(key) = &config.jwt_key {
            let (app, config) = (Arc::clone(app), Arc::clone(config));
            reloader.add("the JWT key", &[key], move || {
                app.verifier.store(read_verifier(&config)?.map(Arc::new));
                Ok(())
            });
        }
        if let Some(((cert, key), certificates)) = config.tls().zip(self.certificates.clone()) {
            reloader.add("the certificate", &[cert, key], move || certificates.reload());
        }
        if let Some((ca, trust)) = config.upstream_ca.as_ref().zip(self.trust.clone()) {
            reloader.add("the roots of the upstream", &[ca], move || trust.reload());
        }
        if let Some(file) = &config.geoip {
            let (app, path) = (Arc::clone(app), file.clone());
            reloader.add("the countries", &[file], move || app.countries.reload(&path));
        }
        if let Some((file, tokens)) = config.tokens.as_ref().zip(self.tokens.clone()) {
            let path = file.clone();
            reloader.add("the tokens", &[file], move || {
                tokens.store(Arc::new(Tokens::read(&path).map_err(StartError::new)?));
                Ok(())
            });
        }
        if self.source.is_reloadable() {
            let (app, status) = (Arc::clone(app), Arc::clone(status));
            let source = Arc::clone(&self.source);
            reloader.add("the policies", &[], move || {
                let bundle = source.read()?;
                let webhooks = bundle.webhooks.clone();
                app.put_in_force(&bundle.policies(), webhooks).map_err(StartError::new)?;
                for warning in status.reloaded(app.now(), &bundle) {
                    tracing::warn!(event = "warning", "{warning}");
                }
                Ok(())
            });
        }
        reloader
    }
}

/// Builds the engine with its saved state, and everything around it.
async fn build_app(
    config: &Config,
    bundle: &PolicyBundle,
    state: Option<&StateDir>,
    log: Log,
    clock: SystemClock,
) -> Result<(Arc<App>, Option<Journals>), StartError> {
    let verifier = read_verifier(config)?;
    let countries = GeoIp::load(config.geoip.as_deref())?;
    let secret = hash_key(config.hash_key.as_deref(), state)?;
    let policies = bundle.policies();
    let metrics = Arc::new(Metrics::new(clock.now().unix_us / 1_000_000, &policies));
    let parts = EngineParts { config, policies: &policies, metrics: &metrics, clock: &clock };
    let EngineStart { engine, secret, journals } = parts.build(state, &secret).await?;
    let drain = Drain::new();
    let allowed = config.notify_allow_private.clone().unwrap_or_default();
    let notifier = Notifier::new(allowed, clock.clone(), drain.clone());
    notifier.replace_targets(bundle.webhooks.clone());
    let app = App {
        engine,
        leases: Leases::new(),
        load: Load::default(),
        delayed_answers: DelayedAnswers::default(),
        drain,
        countries,
        notifier,
        challenges: Challenges::new(&secret),
        metrics,
        log,
        verifier: ArcSwapOption::from_pointee(verifier),
        clock,
    };
    if app.engine.store().shared().is_some_and(|store| !store.lacks_secret()) {
        app.share_secret(&secret);
    }
    Ok((Arc::new(app), journals))
}

fn read_verifier(config: &Config) -> Result<Option<Verifier>, StartError> {
    let Some(key) = &config.jwt_key else { return Ok(None) };
    let verifier = Verifier::load(key, config.jwt_issuer.clone(), config.jwt_audience.clone())?;
    for skipped in verifier.skipped() {
        tracing::warn!(event = "key_skipped", "{skipped}");
    }
    Ok(Some(verifier))
}

/// Saves everything once more.
fn save_last(writer: StateWriter) -> Result<(), StartError> {
    let SaveSummary { keys, marks } = writer.finish()?;
    let message = "counters, bans and flags are in the state directory";
    tracing::info!(event = "state_saved", keys, marks, "{message}");
    Ok(())
}

/// The listeners that serve.
struct Listeners {
    tasks: JoinSet<()>,
    drain: Drain,
    /// The admin listener, which ends after the others, so that operators can watch them end.
    admin: JoinSet<()>,
    admin_drain: Drain,
    /// The service of the demo, which ends after the gateway before it.
    upstream: JoinSet<()>,
    upstream_drain: Drain,
}

impl Listeners {
    fn new(drain: Drain) -> Self {
        Self {
            tasks: JoinSet::new(),
            drain,
            admin: JoinSet::new(),
            admin_drain: Drain::new(),
            upstream: JoinSet::new(),
            upstream_drain: Drain::new(),
        }
    }

    fn spawn<S: Service>(&mut self, listener: Listener, service: S) {
        self.tasks.spawn(listener.serve(service, self.drain.clone()));
    }

    fn spawn_admin<S: Service>(&mut self, listener: Listener, service: S) {
        self.admin.spawn(listener.serve(service, self.admin_drain.clone()));
    }

    fn spawn_upstream<S: Service>(&mut self, listener: Listener, service: S) {
        self.upstream.spawn(listener.serve(service, self.upstream_drain.clone()));
    }

    /// Announces the drain, and after the delay finishes the accepted requests, within a bound. A second
    /// signal ends it at once.
    async fn drain(&mut self, delay: Duration, bound: Duration, mut stop: StopSignals) {
        let ended = async {
            self.announce(delay).await;
            if timeout(bound, self.finish()).await.is_err() {
                tracing::warn!(event = "drain_timeout", "some connections did not end in time");
            }
        };
        tokio::select! {
            () = ended => {}
            () = stop.wait() => {}
        }
    }

    /// Gives load balancers the time to notice that this daemon ends.
    async fn announce(&self, delay: Duration) {
        self.drain.announce();
        self.admin_drain.announce();
        if !delay.is_zero() {
            let delay_ms = delay.as_millis();
            tracing::info!(event = "drain_delay", delay_ms, "told to stop: /ready is 503");
            tokio::time::sleep(delay).await;
        }
    }

    async fn finish(&mut self) {
        self.drain.start();
        tracing::info!(event = "draining", "told to stop: what was accepted is finished");
        while self.tasks.join_next().await.is_some() {}
        self.upstream_drain.start();
        while self.upstream.join_next().await.is_some() {}
        self.admin_drain.start();
        while self.admin.join_next().await.is_some() {}
    }
}

fn bind(
    name: &str,
    address: SocketAddr,
    certificates: Option<Arc<Certificates>>,
    bounds: ListenerBounds,
) -> Result<Listener, StartError> {
    let listener = Listener::bind(address, certificates, bounds);
    listener.map_err(|error| {
        let detail = format!("--{name}: cannot listen on {address}: {error}");
        StartError::new(format!("{detail}; choose another address, or port 0 for a free one"))
    })
}

/// The number of connections of each kind.
fn connection_shares(config: &Config) -> ConnectionShares {
    let each = config.bounds.max_connections.get();
    let upstream = config.bounds.max_upstream_connections.map(NonZeroUsize::get);
    let upstream_ends = usize::from(config.has_gateway()) + usize::from(config.is_demo());
    let demand = ConnectionDemand { each, upstream, upstream_ends };
    let shares = ConnectionShares::new(open_files::allowed(), demand);
    if upstream_ends > 0 && upstream.is_some_and(|wanted| wanted > shares.upstream) {
        let fitting = shares.upstream;
        tracing::warn!(
            event = "open_files",
            fitting,
            "the system allows too few open files for --max-upstream-connections"
        );
    }
    shares
}

fn gateway_bounds(config: &Config, shares: &ConnectionShares) -> GatewayBounds {
    GatewayBounds {
        connections_max: shares.upstream,
        connect: config.bounds.connect_timeout,
        upstream: config.bounds.upstream_timeout,
        body: config.bounds.body_timeout,
        ..GatewayBounds::default()
    }
}

/// The API and the admin listener go beyond loopback only with tokens, or with `--insecure`.
fn refuse_open_listeners(config: &Config) -> Result<(), StartError> {
    if config.tokens.is_some() || config.insecure {
        return Ok(());
    }
    for (flag, address) in [("--api", config.api), ("--admin", config.admin)] {
        if !is_loopback(address.ip()) {
            return Err(StartError::new(format!(
                "{flag} {address}: everybody who reaches this address could use it; give --tokens FILE, listen on 127.0.0.1, or say --insecure"
            )));
        }
    }
    Ok(())
}
