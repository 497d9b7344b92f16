//! An encrypted connection, to the server that was intended.

use oncegate_core::{Answer, Command};
use oncegate_postgres::{Options, PostgresStore};
use oncegate_store::conformance::{key, terms};
use oncegate_store::{Op, Store};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::support::{connect, is_on_a_server_of_its_own, server_url};

/// Encryption applies to the whole server, so the test runs itself again on a separate server.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: run make test"]
async fn an_encrypted_connection_is_made_only_to_a_server_that_proves_its_name() {
    if is_on_a_server_of_its_own("tls") {
        on_a_server_of_our_own().await;
    }
}

async fn on_a_server_of_our_own() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root_file = folder.path().join("root.pem");
    let open = async |mode: &str| PostgresStore::open(&format!("{}?{mode}", server_url()), Options::default()).await;
    let verified = format!("sslmode=verify-full&sslrootcert={}", root_file.display());

    let root = Authority::new();
    std::fs::write(&root_file, root.pem()).expect("is written");
    let refused = open(&verified).await.err().expect("the server does not encrypt yet").to_string();
    assert!(refused.contains("does not support TLS"), "{refused}");

    encrypt(root.certify("127.0.0.1")).await;
    let store = open(&verified).await.expect("opens");
    let op = Op { key: key("k"), command: Command::Claim(terms()) };
    assert!(matches!(store.commit(op.into()).await.expect("writes").only(), Answer::Won(_)));
    let ours = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                WHERE application_name = 'oncegate'";
    assert!(connect().await.query_one(ours, &[]).await.expect("reads").get::<_, bool>(0), "all of them");
    store.close().await;

    let unknown = open("sslmode=require").await.err().expect("the system does not know the authority").to_string();
    assert!(unknown.contains("certificate") || unknown.contains("authorities"), "{unknown}");
    encrypt(root.certify("db.example")).await;
    let another = open(&verified).await.err().expect("it has another's name").to_string();
    assert!(another.contains("certificate"), "{another}");
    encrypt(Authority::new().certify("127.0.0.1")).await;
    let impostor = open(&verified).await.err().expect("another authority has certified it").to_string();
    assert!(impostor.contains("certificate"), "{impostor}");
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its key.
struct Identity {
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).expect("good names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("signs").pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    fn pem(&self) -> &str {
        &self.pem
    }

    fn certify(&self, name: &str) -> Identity {
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a good name");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signs").pem();
        Identity { certificate, key: key.serialize_pem() }
    }
}

/// Gives the server its certificate and key by means of SQL, because the server has to own the files.
async fn encrypt(identity: Identity) {
    let admin = connect().await;
    for (name, pem) in [("server.crt", identity.certificate), ("server.key", identity.key)] {
        let lines = pem.lines().map(|line| format!("('{line}')")).collect::<Vec<_>>().join(",");
        let write = format!("COPY (VALUES {lines}) TO PROGRAM 'cat > {name} && chmod 600 {name}'");
        admin.batch_execute(&write).await.expect("writes");
    }
    let loaded_at = async || {
        let row = connect().await.query_one("SELECT pg_conf_load_time()::text", &[]).await.expect("reads");
        row.get::<_, String>(0)
    };
    let before = loaded_at().await;
    admin.batch_execute("ALTER SYSTEM SET ssl = on").await.expect("sets");
    admin.batch_execute("SELECT pg_reload_conf()").await.expect("reloads");
    // A new connection shows when its server process last read the files.
    while loaded_at().await == before {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}
