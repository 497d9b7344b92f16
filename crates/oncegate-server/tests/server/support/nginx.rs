//! A private nginx in front of a server.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use super::PATIENCE;

const PROGRAM: &str = "/usr/sbin/nginx";

/// Stopped with the test.
pub struct Nginx {
    child: Child,
    pub address: SocketAddr,
    _folder: TempDir,
}

impl Nginx {
    /// `location / { … }` has these lines besides a bare `proxy_pass`.
    pub fn before(upstream: SocketAddr, lines: &str) -> Nginx {
        let folder = TempDir::new().expect("a temporary folder");
        // Bound and released, to find a free port.
        let address = TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr()).expect("a free port");
        let config = format!(
            "daemon off;\nmaster_process on;\nworker_processes 1;\npid nginx.pid;\nerror_log stderr;\n\
             events {{}}\n\
             http {{\n  access_log off;\n  client_body_temp_path body;\n  proxy_temp_path proxy;\n\
             \x20 fastcgi_temp_path fastcgi;\n  uwsgi_temp_path uwsgi;\n  scgi_temp_path scgi;\n\
             \x20 server {{\n    listen {address};\n    location / {{\n      proxy_pass http://{upstream};\n      {lines}\n    }}\n  }}\n}}\n"
        );
        std::fs::write(folder.path().join("nginx.conf"), config).expect("the folder is ours");
        let mut command = Command::new(PROGRAM);
        command.arg("-p").arg(folder.path()).args(["-e", "stderr", "-c", "nginx.conf"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.expect("nginx is installed: run scripts/install");
        let mut nginx = Nginx { child, address, _folder: folder };
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).is_err() {
            let ended = nginx.child.try_wait().expect("the process is ours");
            assert!(ended.is_none() && Instant::now() < deadline, "nginx does not listen: {ended:?}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Its workers end with it.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        let _ = self.child.wait();
    }
}
