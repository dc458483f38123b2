"""One Gluon net and its policy."""
