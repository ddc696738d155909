"""Texts of the roles: their formats, transcripts, leaks and discounting. Functions of strings that know no other
package of `tasks`."""
