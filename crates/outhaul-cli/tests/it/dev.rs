//! `outhaul dev`, in a folder of the test's own.

use crate::support::Place;

#[tokio::test(flavor = "multi_thread")]
async fn a_private_server_comes_up_serves_and_goes() {
    let place = Place::bare();
    let dir = place.path("server").to_string_lossy().into_owned();
    let up = place.run(&["dev", "--dir", &dir, "up", "--tcp", "--json"]).ok().json();
    assert_eq!(up["adopted"], false);
    let again = place.run(&["dev", "--dir", &dir, "up"]).ok();
    let url = again.out.trim();
    assert!(again.err.contains("runs already") && up["url"] == url, "{url} {up}");
    let untold = place.run_full(&["dev", "--dir", &dir, "up"]).exits(11).err;
    assert!(untold.contains("the server runs, but standard output cannot be written"), "{untold}");
    assert!(untold.contains(&format!("hint: Its URL: outhaul dev --dir {dir} url")), "{untold}");
    let tcp = place.run(&["dev", "--dir", &dir, "url", "--tcp"]).ok().out;
    assert_eq!(up["tcp_url"], tcp.trim());

    for url in [url, tcp.trim()] {
        place.run(&["migrate", "--database-url", url]).ok();
    }
    psql(&place, &dir);

    place.run(&["dev", "--dir", &dir, "down"]).ok();
    place.run(&["dev", "--dir", &dir, "url"]).exits(3);
    let refused = place.run(&["dev", "--dir", &dir, "psql"]).exits(3);
    assert!(refused.err.contains("hint: Start it: outhaul dev up"), "{}", refused.err);
    place.run(&["dev", "--dir", &dir, "down", "--remove"]).exits(4);
    assert!(place.path("server").is_dir());
    place.run(&["dev", "--dir", &dir, "down", "--remove", "--yes"]).ok();
    assert!(!place.path("server").exists());
}

fn psql(place: &Place, dir: &str) {
    let installation = outhaul_local::Installation::find().unwrap();
    if installation.tool("psql").is_none() {
        outhaul_local::skip("there is no psql beside the server");
        return;
    }
    let ran = place
        .run(&["dev", "--dir", dir, "psql", "--", "-At", "-c", "select count(*) from outhaul.all_jobs"])
        .ok();
    assert_eq!(ran.out, "0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_psql_the_url_is_told() {
    let bare = Place::bare();
    let installation = outhaul_local::Installation::find().unwrap();
    let bin = bare.path("bin");
    std::fs::create_dir(&bin).unwrap();
    for program in ["initdb", "postgres", "pg_ctl"] {
        std::os::unix::fs::symlink(installation.bin_dir().join(program), bin.join(program)).unwrap();
    }
    let dir = bare.path("server").to_string_lossy().into_owned();
    bare.run(&["dev", "--dir", &dir, "up"]).ok();
    let bin = bin.to_string_lossy().into_owned();
    let place = Place::bare().with("PATH", &bin).with("OUTHAUL_PG_BINDIR", &bin);
    let ran = place.run(&["dev", "--dir", &dir, "psql"]).exits(3);
    assert!(ran.err.contains("error[no_psql]") && ran.err.contains("postgresql://"), "{}", ran.err);
    bare.run(&["dev", "--dir", &dir, "down", "--remove", "--yes"]).ok();
}
