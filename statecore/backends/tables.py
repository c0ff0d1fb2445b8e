"""The Postgres tables of the ground, as SQLModel sees them; the migrations make them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Column, DateTime, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

_NOW = text("clock_timestamp()")


class Namespace(SQLModel, table=True):
    """A namespace and its epoch: the truth that Redis only copies."""

    __tablename__ = "namespaces"
    __table_args__ = (CheckConstraint("epoch >= 1", name="namespaces_epoch_positive"),)

    name: str = Field(sa_column=Column(Text, primary_key=True))
    epoch: int = Field(sa_column=Column(BigInteger, nullable=False))
    raised_at: datetime = Field(sa_column=Column(DateTime(timezone=True), nullable=False, server_default=_NOW))


class AgentRegistration(SQLModel, table=True):
    """Who was registered, with what; it outlives Redis."""

    __tablename__ = "agents"

    namespace: str = Field(sa_column=Column(Text, primary_key=True))
    agent_id: str = Field(sa_column=Column(Text, primary_key=True))
    capabilities: list[str] = Field(sa_column=Column(JSONB, nullable=False))
    agent_metadata: dict[str, Any] = Field(sa_column=Column("metadata", JSONB, nullable=False))
    registered_at: datetime = Field(sa_column=Column(DateTime(timezone=True), nullable=False, server_default=_NOW))


metadata = SQLModel.metadata
