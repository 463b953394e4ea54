//! Ten kinds of garbage come to every port of a run in processes: it ends as a run without ports.

#[path = "../../transferqueue/tests/wire_garbage/kinds.rs"]
#[allow(unreachable_pub, reason = "a test binary exports nothing")]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod kinds;

use std::{
    fs,
    process::Stdio,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use kinds::{Kinds, Port};
use tq_tests::{Workplace, until};

const STEPS: &str = "trainer.total_training_steps=40";
/// Connections to one port that say nothing.
const HALF_OPEN: usize = 200;
const PORTS: [&str; 3] = ["the runner's own", "the encrypted one", "the control socket"];

#[test]
fn a_run_in_processes_does_not_notice_garbage_on_its_ports() {
    let [quiet, loud] = [(); 2].map(|()| Workplace::new(env!("CARGO_BIN_EXE_tq-run-under-test")));
    quiet.succeed("quickstart.yaml", &[STEPS]);
    let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = loud.path().join("cert.pem");
    fs::write(&certificate, params.self_signed(&key).expect("a certificate").pem()).expect("a file");
    fs::write(loud.path().join("key.pem"), key.serialize_pem()).expect("a file");
    let store = "+store={listen: '127.0.0.1:0', tls: {cert: cert.pem, key: key.pem}}";
    let mut run = loud.small("quickstart.yaml", &[STEPS, store, "workers={all: {stages: '*', kind: processes}}"]);
    let run = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("program under test");

    let read = |file: &str| fs::read_to_string(loud.run_file("small", file)).ok().map(|text| text.trim().to_owned());
    let net = |url: &str, token: &str, ca: bool| {
        let (url, token) = until(|| Some((read(url)?, read(token)?)).filter(|(url, _)| !url.is_empty()));
        let address = url.split_once("://").expect("a scheme").1.to_owned();
        Port::Net { address, token, ca: ca.then(|| certificate.clone()) }
    };
    // The ports of the last phase; the warm-up has others.
    let ports = [
        net("url", "token", false),
        net("listen.url", "listen.token", true),
        Port::Control(loud.run_file("small", "control.sock")),
    ];
    let (over, rounds) = (AtomicBool::new(false), [(); 3].map(|()| AtomicUsize::new(0)));
    let output = thread::scope(|scope| {
        for (port, rounds) in ports.into_iter().zip(&rounds) {
            let over = &over;
            scope.spawn(move || {
                let kinds = Kinds::new(port, HALF_OPEN);
                for seed in 1.. {
                    kinds.round(seed, over);
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    rounds.fetch_add(1, Ordering::SeqCst);
                    thread::park_timeout(Duration::from_millis(100));
                }
            });
        }
        let output = run.wait_with_output().expect("its end");
        over.store(true, Ordering::SeqCst);
        output
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    for (port, rounds) in PORTS.iter().zip(&rounds) {
        assert!(rounds.load(Ordering::SeqCst) > 0, "{port} heard no whole round while the run went on");
    }
    assert_eq!(loud.trained("small"), quiet.trained("small"));
    assert!(loud.weights("small", "policy") == quiet.weights("small", "policy"), "other weights than without garbage");
    loud.assert_ledger_balances("small");
}
