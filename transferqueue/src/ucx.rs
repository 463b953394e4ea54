//! Transfers through UCX as they are chosen: by who serves a store, and by its word for the readers.

use serde::{Deserialize, Serialize};

use crate::wire::ucx::Offer;

/// The device that no other host reaches.
const LOOPBACK: &str = "lo";

/// How a server gives bytes away through UCX.
///
/// UCX asks nobody who they are: what can reach its port can talk to it. So networks are refused on devices that other hosts reach
/// unless `insecure` says that they are trusted, and so is whatever lets a peer read this process's memory over them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ucx {
    /// What bytes may travel over.
    pub transports: Vec<UcxTransport>,
    /// Network devices by name (`eth0`, `lo`, `mlx5_0:1`); all when empty.
    pub devices: Vec<String>,
    /// How readers get at bytes; `None`: as the transports are good at.
    pub reads: Option<UcxReads>,
    /// Whoever can reach the devices is trusted: to talk to UCX, and to read and write all memory of this process where reads
    /// over a network are [`UcxReads::Fetched`].
    pub insecure: bool,
}

/// What UCX may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UcxTransport {
    /// Memory of the same host.
    Shm,
    /// TCP, on a port of UCX's own choice.
    Tcp,
    /// InfiniBand and RoCE, on reliable connections. Refused in a build without the feature `rdma`.
    Rc,
}

/// How readers get at bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UcxReads {
    /// They read the store's memory one-sidedly.
    Fetched,
    /// They ask, and are sent messages: several times faster over TCP.
    Sent,
}

impl Default for Ucx {
    fn default() -> Self {
        Self { transports: vec![UcxTransport::Shm], devices: Vec::new(), reads: None, insecure: false }
    }
}

impl UcxTransport {
    const ALL: [Self; 3] = [Self::Shm, Self::Tcp, Self::Rc];

    /// Whether this build has it.
    pub const fn is_built(self) -> bool {
        Ucx::BUILT && (!matches!(self, Self::Rc) || cfg!(feature = "rdma"))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Rc => "rc",
        }
    }
}

impl Ucx {
    /// Whether this build can use it.
    pub const BUILT: bool = cfg!(feature = "ucx");

    /// Why it cannot be used in a build without it.
    pub(crate) const MISSING: &str = "this build has no UCX; build it with the feature `ucx` \
        (`cargo build --features ucx`, which needs gcc and make)";

    pub(crate) fn is_fetched(&self) -> bool {
        let best = if self.transports.contains(&UcxTransport::Tcp) { UcxReads::Sent } else { UcxReads::Fetched };
        self.reads.unwrap_or(best) == UcxReads::Fetched
    }

    /// What other hosts may come in by.
    fn network(&self) -> Option<UcxTransport> {
        self.transports.iter().copied().find(|transport| *transport != UcxTransport::Shm)
    }

    fn is_on_loopback(&self) -> bool {
        !self.devices.is_empty() && self.devices.iter().all(|device| device == LOOPBACK)
    }

    /// Whether a server may offer this.
    ///
    /// # Errors
    /// Why not, and what to do.
    pub(crate) fn check(&self) -> Result<(), String> {
        if !Self::BUILT {
            return Err(Self::MISSING.to_owned());
        }
        if self.transports.is_empty() {
            return Err("found no transport, expected `shm`, `tcp` or `rc`".to_owned());
        }
        if let Some(missing) = self.transports.iter().find(|transport| !transport.is_built()) {
            let name = missing.name();
            return Err(format!(
                "this build has no {name}; build it with the feature `rdma`, which needs libibverbs-dev"
            ));
        }
        if let Some(network) = self.network().filter(|_| !self.insecure) {
            let name = network.name();
            if self.is_fetched() {
                return Err(format!(
                    "found one-sided reads over {name}, by which a peer can read and write all memory of this process; take \
                     `reads: sent`, or say `insecure` if all who reach the devices are trusted"
                ));
            }
            if !self.is_on_loopback() {
                let found = if self.devices.is_empty() { "all".to_owned() } else { self.devices.join(", ") };
                return Err(format!(
                    "found {name} on the devices {found}, where UCX asks nobody who they are; give `devices: [{LOOPBACK}]`, or \
                     say `insecure` if all who reach them are trusted"
                ));
            }
        }
        Ok(())
    }

    /// What is said of it at the handshake.
    #[cfg_attr(not(feature = "ucx"), allow(dead_code, reason = "a build without UCX offers none"))]
    pub(crate) fn offer(&self) -> Offer {
        Offer {
            transports: self.transports.iter().map(|transport| transport.name().to_owned()).collect(),
            devices: self.devices.clone(),
            fetched: self.is_fetched(),
        }
    }

    /// What a reader uses who takes an offer. It trusts the devices as the store does whose URL and token it has; their names are
    /// those of the store's host, unless nothing leaves that.
    ///
    /// # Errors
    /// Why it cannot.
    #[cfg_attr(not(feature = "ucx"), allow(dead_code, reason = "a build without UCX takes no offer"))]
    pub(crate) fn taken(offer: &Offer) -> Result<Self, String> {
        let built = || UcxTransport::ALL.into_iter().filter(|transport| transport.is_built());
        let known = |name: &String| built().find(|transport| transport.name() == name);
        let transports: Vec<_> = offer.transports.iter().filter_map(known).collect();
        if transports.is_empty() {
            let here: Vec<_> = built().map(UcxTransport::name).collect();
            return Err(format!("the store speaks {:?} through UCX, this client {here:?}", offer.transports));
        }
        let reads = Some(if offer.fetched { UcxReads::Fetched } else { UcxReads::Sent });
        let taken = Self { transports, devices: offer.devices.clone(), reads, insecure: true };
        Ok(if taken.is_on_loopback() { taken } else { Self { devices: Vec::new(), ..taken } })
    }

    /// What UCX is told.
    #[cfg(feature = "ucx")]
    pub(crate) fn options(&self) -> tq_ucx::Options {
        let transport = |transport: &UcxTransport| match transport {
            UcxTransport::Shm => tq_ucx::Transport::Shm,
            UcxTransport::Tcp => tq_ucx::Transport::Tcp,
            UcxTransport::Rc => tq_ucx::Transport::Rc,
        };
        let over = tq_ucx::Options::over(self.transports.iter().map(transport));
        let (devices, one_sided) = (self.devices.clone(), self.is_fetched());
        tq_ucx::Options { devices, one_sided, insecure: self.insecure, ..over }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn over(transports: &[UcxTransport]) -> Ucx {
        Ucx { transports: transports.to_vec(), ..Ucx::default() }
    }

    fn refused(ucx: &Ucx) -> String {
        ucx.check().unwrap_err()
    }

    #[cfg(not(feature = "ucx"))]
    #[test]
    fn a_build_without_ucx_says_how_to_get_it() {
        assert!(refused(&Ucx::default()).contains("build it with the feature `ucx`"));
        assert!(refused(&over(&[UcxTransport::Tcp])).contains("build it with the feature `ucx`"));
    }

    #[cfg(feature = "ucx")]
    #[test]
    fn tcp_needs_a_word_where_others_reach_it_and_more_where_they_read_memory() {
        Ucx::default().check().unwrap();
        assert!(refused(&over(&[])).contains("found no transport"));
        let tcp = over(&[UcxTransport::Tcp, UcxTransport::Shm]);
        assert!(!tcp.is_fetched() && Ucx::default().is_fetched());
        assert!(refused(&tcp).contains("found tcp on the devices all"));
        let devices = |names: &[&str]| Ucx { devices: names.iter().map(ToString::to_string).collect(), ..tcp.clone() };
        devices(&["lo"]).check().unwrap();
        assert!(refused(&devices(&["lo", "eth0"])).contains("found tcp on the devices lo, eth0"));
        let fetched = Ucx { reads: Some(UcxReads::Fetched), ..devices(&["lo"]) };
        assert!(refused(&fetched).contains("found one-sided reads over tcp"));
        Ucx { insecure: true, ..fetched }.check().unwrap();
        Ucx { insecure: true, ..tcp }.check().unwrap();
    }

    #[cfg(feature = "ucx")]
    #[test]
    fn rc_needs_a_build_that_has_it_and_a_word() {
        let rc = over(&[UcxTransport::Rc]);
        let insecure = Ucx { insecure: true, ..rc.clone() };
        if cfg!(feature = "rdma") {
            assert!(rc.is_fetched() && refused(&rc).contains("found one-sided reads over rc"));
            insecure.check().unwrap();
        } else {
            assert!(refused(&insecure).contains("this build has no rc; build it with the feature `rdma`"));
        }
    }

    #[cfg(feature = "ucx")]
    #[test]
    fn a_reader_takes_what_it_is_offered_and_not_the_names_of_another_host_s_devices() {
        let offered = |devices: &[&str]| {
            let devices = devices.iter().map(ToString::to_string).collect();
            let offer = Offer { transports: vec!["carrier".into(), "tcp".into()], devices, fetched: false };
            Ucx::taken(&offer).unwrap()
        };
        assert_eq!(offered(&["eth7"]).devices, Vec::<String>::new());
        assert_eq!(offered(&["lo"]).devices, ["lo"]);
        assert_eq!(offered(&[]).transports, [UcxTransport::Tcp]);
        let none = Offer { transports: vec!["carrier".into()], ..Offer::default() };
        assert!(Ucx::taken(&none).unwrap_err().contains(r#"this client ["shm", "tcp""#));
    }
}
