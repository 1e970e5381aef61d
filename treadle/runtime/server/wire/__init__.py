"""The compiled server and client of parameters: chunks over TCP, or in memory that processes of one host share."""
