//! A service over HTTP: what a request becomes, and what is answered.
