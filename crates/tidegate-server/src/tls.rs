use std::sync::Arc;
pub(crate) struct Certificates(Arc<rustls::ServerConfig>);
impl Certificates {
    pub(crate) fn config(&self) -> Arc<rustls::ServerConfig> {
        Arc::clone(&self.0)
    }
}
