//! What a context may use.

use std::{fmt, time::Duration};

use crate::Error;

/// A family of UCX transports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP sockets. Listens on a port of its own on every device in use.
    Tcp,
    /// Memory of the same host: POSIX and System V segments, and reads of the other process's memory by the kernel (CMA).
    Shm,
    /// Reliable connections of InfiniBand and RoCE. Only in a build with the feature `rdma`.
    Rc,
}

impl Transport {
    /// Whether this build has it.
    pub const fn is_built(self) -> bool {
        !matches!(self, Self::Rc) || cfg!(feature = "rdma")
    }

    /// As UCX calls it (`UCX_TLS`).
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
            Self::Rc => "rc",
        }
    }

    /// Whether other hosts may come in.
    fn is_network(self) -> bool {
        self != Self::Shm
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Options of a [`Context`](crate::Context).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What bytes may travel over; not empty.
    pub transports: Vec<Transport>,
    /// Network devices by name (`eth0`; with a port for [`Transport::Rc`], `mlx5_0:1`); all when empty.
    pub devices: Vec<String>,
    /// Whether memory can be shared and read one-sidedly; messages can be sent always.
    pub one_sided: bool,
    /// Allow one-sided access over a network: whoever reaches a port of this process can read and write all of its memory then,
    /// with a key or without. (UCX answers messages that ask for that, whatever they come over.)
    pub insecure: bool,
    /// How often idle peers are looked after: one that is gone is noticed after two of these at most, and over
    /// [`Transport::Rc`] when the device has given up sending (`UCX_RC_VERBS_TIMEOUT`, by default a second, eight times).
    /// At least a millisecond.
    pub keepalive: Duration,
}

impl Options {
    /// These transports, with one-sided access where only processes of the same host can come in.
    pub fn over(transports: impl IntoIterator<Item = Transport>) -> Self {
        let transports: Vec<Transport> = transports.into_iter().collect();
        let one_sided = !transports.iter().any(|transport| transport.is_network());
        Self { transports, devices: Vec::new(), one_sided, insecure: false, keepalive: Duration::from_secs(1) }
    }

    /// What UCX is told, by its own names.
    pub(crate) fn settings(&self) -> Result<Vec<(&'static str, String)>, Error> {
        let what = "options of a UCX context";
        if self.transports.is_empty() {
            return Err(Error::refused(what, "no transport", "at least one"));
        }
        if let Some(missing) = self.transports.iter().find(|transport| !transport.is_built()) {
            let expected = "a build of tq-ucx with the feature `rdma` (which needs libibverbs-dev)";
            return Err(Error::refused(what, missing.to_string(), expected));
        }
        if self.one_sided
            && !self.insecure
            && let Some(network) = self.transports.iter().find(|transport| transport.is_network())
        {
            let expected = format!(
                "messages alone over {network}, or `insecure`: any peer could read and write any memory of this process"
            );
            return Err(Error::refused(what, format!("one-sided access over {network}"), expected));
        }
        if self.keepalive < Duration::from_millis(1) {
            return Err(Error::refused(what, format!("a keepalive of {:?}", self.keepalive), "at least 1ms"));
        }
        let mut settings = vec![
            ("TLS", joined(self.transports.iter().map(ToString::to_string))),
            ("KEEPALIVE_INTERVAL", format!("{}ms", self.keepalive.as_millis())),
            // Off by default: without it no endpoint over shared memory can say that its peer is gone.
            ("POSIX_ERROR_HANDLING", "y".into()),
            ("SYSV_ERROR_HANDLING", "y".into()),
            // The peer answers before an endpoint counts as connected. Otherwise the first large message asks for that answer,
            // and nobody looks after a peer that ends before it has given it.
            ("RESOLVE_REMOTE_EP_ID", "y".into()),
        ];
        if !self.devices.is_empty() {
            // Shared memory is a device too, by UCX's count of another kind (`SHM_DEVICES`).
            settings.push(("NET_DEVICES", joined(self.devices.iter().cloned())));
        }
        Ok(settings)
    }
}

fn joined(names: impl Iterator<Item = String>) -> String {
    names.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ucx_is_told_and_what_is_refused() {
        let shm = Options::over([Transport::Shm]);
        assert!(shm.one_sided);
        assert!(shm.settings().unwrap().contains(&("TLS", "shm".into())));
        let tcp =
            Options { devices: vec!["lo".into(), "eth0".into()], ..Options::over([Transport::Tcp, Transport::Shm]) };
        assert!(!tcp.one_sided);
        let told = tcp.settings().unwrap();
        assert!(told.contains(&("TLS", "tcp,shm".into())) && told.contains(&("NET_DEVICES", "lo,eth0".into())));
        let refused = |options: Options| options.settings().unwrap_err().to_string();
        let both = Options { one_sided: true, ..tcp };
        assert!(refused(both).contains("found one-sided access over tcp, expected messages alone"));
        assert!(refused(Options::over([])).contains("found no transport, expected at least one"));
        let rc = Options { one_sided: true, ..Options::over([Transport::Rc]) };
        let why = if Transport::Rc.is_built() {
            "one-sided access over rc"
        } else {
            "a build of tq-ucx with the feature `rdma`"
        };
        assert!(refused(rc).contains(why));
        let never = Options { keepalive: Duration::ZERO, ..shm };
        assert!(refused(never).contains("found a keepalive of 0ns"));
    }
}
